"""Errors of the run config, as ``--config`` and ``flwr run --run-config`` give it: nothing is read or started."""

from __future__ import annotations

from tests.apps.errors.row import command, run

KEYS = "`python -m simulations list keys`"
VERTICAL = 'strategy="vfb2-sgd"'
OWN = "tests.apps.errors.own"

ROWS = [
    # keys and values
    run(
        "near-miss key",
        "learning-rat=0.1",
        says=("learning-rat", "unknown run-config key", "did you mean 'learning-rate'?", KEYS),
    ),
    run("unknown key", "quux=1", says=("quux", "unknown run-config key", "docs/configuration.md", KEYS)),
    run("unknown key of a table", "fedx.gama=0.5", says=("fedx.gama", "unknown", "'fedx.gamma'", KEYS)),
    run("number out of range", "learning-rate=0.0", says=("learning-rate", "got 0.0", "a number > 0", KEYS)),
    run("text for a number", 'num-server-rounds="3"', says=("num-server-rounds", "got '3'", "an integer >= 1", KEYS)),
    run("float for an integer", "local-steps=1.5", says=("local-steps", "got 1.5", "an integer >= 1", KEYS)),
    run("number for a truth value", "resume=1", says=("resume", "got 1", "true", KEYS)),
    run("unknown word", 'dtype="float16"', says=("dtype", "got 'float16'", "float32, float64", KEYS)),
    run("fractions that are none", 'lr-decay-at="1.5"', says=("lr-decay-at", "got '1.5'", "numbers in (0, 1)", KEYS)),
    run("number of a table", "composite.ratio=2.0", says=("composite.ratio", "got 2.0", "in [0, 1]", KEYS)),
    run("number or word", 'vfb2.skew="much"', says=("vfb2.skew", "got 'much'", "or auto", KEYS)),
    run("several at once", "seed=-1", "loss=3", says=("loss: got 3", "seed: got -1", "an integer >= 0", KEYS)),
    # names
    run(
        "near-miss strategy",
        'strategy="fedx3"',
        says=("strategy", "got 'fedx3'", "did you mean 'fedx", "`python -m simulations list strategies`"),
    ),
    run(
        "near-miss data set",
        'dataset="digit"',
        says=("dataset", "'digit'", "did you mean 'digits'?", "`python -m simulations list datasets`"),
    ),
    run(
        "near-miss partition",
        'partition="dirichelt"',
        says=("partition", "'dirichelt'", "did you mean 'dirichlet'?", "`python -m simulations list partitions`"),
    ),
    run(
        "near-miss model",
        'model="resnet8"',
        says=("model", "got 'resnet8'", "did you mean 'resnet", "`python -m simulations list models`"),
    ),
    run(
        "near-miss loss",
        'loss="cross-entrpy"',
        says=("loss", "got 'cross-entrpy'", "did you mean 'cross-entropy'?", "docs/configuration.md"),
    ),
    # what does not go together
    run(
        "number type of a strategy",
        VERTICAL,
        'dtype="float32"',
        says=("dtype", "got 'float32'", "computes in float64", "leave it out"),
    ),
    run(
        "fraction of all clients",
        'strategy="composite" fraction-train=0.5',
        says=("fraction-train", "got 0.5", "must be 1.0", "leave it out"),
    ),
    run(
        "vertical data set of rows",
        VERTICAL,
        'dataset="synthetic-sparse-logistic"',
        says=("dataset", "got 'synthetic-sparse-logistic'", "allowed: any but", "docs/vertical.md"),
    ),
    run(
        "vertical partition of rows",
        VERTICAL,
        'partition="dirichlet"',
        says=("partition", "got 'dirichlet'", "allowed: iid or consecutive", "docs/vertical.md"),
    ),
    run(
        "vertical columns",
        VERTICAL,
        'dataset="csv" feature-columns="a,b"',
        says=("feature-columns", "got 'a,b'", "allowed: ''", "leave it out"),
    ),
    run(
        "vertical scaling",
        VERTICAL,
        'dataset="csv" standardise=false',
        says=("standardise", "got False", "allowed: True", "leave it out"),
    ),
    run(
        "vertical shift",
        VERTICAL,
        "client-shift=0.1",
        says=("client-shift", "got 0.1", "allowed: 0", "docs/vertical.md"),
    ),
    run(
        "vertical sites",
        VERTICAL,
        "partition-sites=9",
        says=("partition-sites", "got 9", "allowed: 0", "leave it out"),
    ),
    run(
        "privacy of labels that are numbers",
        VERTICAL,
        'vfb2.problem="ridge" vfb2.label-epsilon=1.0',
        says=("vfb2.label-epsilon", "got 1.0", "allowed: 0", "set vfb2.problem"),
    ),
    run(
        "minimax data set",
        'strategy="fedx2" dataset="synthetic-pl"',
        says=("dataset", "got 'synthetic-pl'", "local-sgdam", "strategies that can"),
    ),
    run(
        "loss of a problem of its own",
        'strategy="coda" dataset="synthetic-pl" loss="auc-minimax"',
        says=("loss", "got 'auc-minimax'", "allowed: auto", "leave it out"),
    ),
    run(
        "own problem that cannot be imported",
        'strategy="coda" loss="no.such:Problem"',
        says=("loss", "'no.such:Problem'", "expected 'package.module:factory'", "docs/minimax.md"),
    ),
    run(
        "own problem that is no factory",
        f'strategy="coda" loss="{OWN}:NUMBER"',
        says=("loss", f"'{OWN}:NUMBER': is int", "expected a class or function", "docs/minimax.md"),
    ),
    run(
        "own problem of another strategy",
        'strategy="fedx2" loss="a.b:Problem"',
        says=("loss", "got 'a.b:Problem'", "allowed: auto", "strategies that can"),
    ),
    run(
        "loss of another strategy",
        'strategy="fedx1" loss="kl-opauc"',
        says=("loss", "got 'kl-opauc'", "allows auto", "goes with strategy"),
    ),
    run(
        "objective without margin",
        'strategy="fedx2" loss="auprc" fedx.surrogate="squared-hinge" fedx.margin=0.0',
        says=("margin", "got 0", "needs a margin > 0", KEYS),
    ),
    run(
        "surrogate of p-norm push",
        'strategy="fedx2" loss="p-norm-push" fedx.surrogate="psm"',
        says=("surrogate", "got 'psm'", "allowed: squared-hinge, logistic", KEYS),
    ),
    run(
        "box without inside",
        'strategy="composite" composite.penalty="box" composite.lower=1.0 composite.upper=0.0',
        says=("composite.lower", "got [1.0, 0.0]", "must be <= upper", "docs/composite.md"),
    ),
    # what a data set has not
    run(
        "no files", 'dataset="csv"', says=("dataset 'csv'", "got no data-dir", "the file or its folder", "set data-dir")
    ),
    run(
        "partition of drawn data",
        'strategy="coda" dataset="synthetic-pl" partition="shard"',
        says=("partition", "got 'shard'", "must be 'natural'", "docs/data.md"),
    ),
    run(
        "partition of own sites",
        'dataset="synthetic-offset-sites" partition="shard"',
        says=("partition", "got 'shard'", "must be 'natural'", "docs/data.md"),
    ),
    run(
        "columns of a set that has its own",
        'feature-columns="a"',
        says=("feature-columns", "got 'a'", "allowed with dataset csv, parquet, svmlight", "leave it out"),
    ),
    run(
        "scaling of a set that has its own",
        "standardise=false",
        says=("standardise", "got False", "allowed with dataset csv or parquet", "leave it out"),
    ),
    run(
        "number of svmlight's features",
        'dataset="svmlight" data-dir="{tmp}" feature-columns="many"',
        says=("feature-columns", "got 'many'", "a number of features", "docs/data.md"),
    ),
    run(
        "column twice",
        'dataset="csv" data-dir="{tmp}" feature-columns="a,b,a"',
        says=("feature-columns", "'a,b,a'", "allowed: once", "docs/data.md"),
    ),
    run(
        "column that is none",
        'dataset="csv" data-dir="{tmp}" feature-columns="a,b[x"',
        says=("feature-columns", "'b[x'", "allowed: names with commas", "docs/data.md"),
    ),
    run(
        "column of one value",
        'dataset="csv" data-dir="{tmp}" feature-columns="a[x]"',
        says=("feature-columns", "'a[x]'", "two or more different values", "docs/data.md"),
    ),
    run(
        "own files of a named set",
        'dataset="digits" partition="own"',
        says=("dataset", "got 'digits'", "csv, parquet, svmlight", "docs/data.md"),
    ),
    run(
        "own files disturbed",
        'dataset="csv" partition="own" label-noise=0.1',
        says=("label-noise", "got 0.1", "'own': 0", "leave it out"),
    ),
    run(
        "own files held out",
        'dataset="csv" partition="own" data-dir="{tmp}" validation-fraction=0.2',
        says=("validation-fraction", "got 0.2", "and a data-dir: 0", "leave data-dir out"),
    ),
    run(
        "drawn data held out",
        'strategy="coda" dataset="synthetic-pl" validation-fraction=0.5',
        says=("validation-fraction", "got 0.5", "must be 0", "leave it out"),
    ),
    # the option itself
    run("not pairs", "nonsense", says=("--config", "'nonsense'", "key=value", "docs/configuration.md")),
    run(
        "key twice in an option",
        "seed=1 local-steps=2 seed=3",
        says=("--config", "seed is there twice", "allowed: once", "leave one out"),
    ),
    run(
        "string without quotes",
        "strategy=fedx2",
        says=("--config", "'strategy=fedx2'", "strings in double quotes", "docs/configuration.md"),
    ),
    run("empty pairs", "=", says=("--config", "'='", "key=value", "docs/configuration.md")),
    run(
        "no such file",
        "{tmp}/none.toml",
        says=("--config", "{tmp}/none.toml", "a .toml file that can be read", "docs/configuration.md"),
    ),
    run(
        "file that is not TOML",
        "{tmp}/bad.toml",
        says=("--config", "{tmp}/bad.toml", "allowed: a .toml file", "docs/configuration.md"),
        files={"bad.toml": "seed = = 1\n"},
    ),
    run("place by --config", 'run-name="x"', says=("run-name", "got 'x'", "by --out", "leave it out")),
    command(
        "centralized loss",
        "centralized",
        "--out",
        "{out}",
        "-c",
        'strategy="coda"',
        says=("loss", "got 'auc-minimax'", "allowed: ", "set strategy or loss"),
    ),
    command(
        "reference resumed",
        "centralized",
        "--out",
        "{out}",
        "-c",
        "resume=true",
        says=("resume", "got true", "trained in one go", "leave it out"),
    ),
    command(
        "reference that is not vertical",
        "nonfederated",
        "--out",
        "{out}",
        "-c",
        'strategy="fedx2"',
        says=("strategy", "got 'fedx2'", "allowed: vfb2", "`python -m simulations centralized`"),
    ),
]
