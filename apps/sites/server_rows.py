"""The rows of the server's own test file, which must fit the sites' rows."""

from pathlib import Path

from apps.run_config.algorithm import RunConfig
from apps.sites.cells import check_outcomes
from apps.sites.rows import find_scales, read_file
from problems.data import DataError, Samples
from problems.data.spec import PAGE
from strategies.rounds.schema import Schema, describe_pixels, same_depth


def server_samples(config: RunConfig, schema: Schema) -> Samples:
    """Return the rows of the server's test file, ``data-dir``, scaled in the same way as the sites' rows.

    Raises:
        DataError: The file cannot be used, lacks a class, or has other columns than the sites.
    """
    rows = read_file(Path(config.data.data_dir).expanduser(), config.data, None)
    own_features, site_features = (
        () if table is None else table.inputs for table in (rows.preprocessing, schema.preprocessing)
    )
    names = [tuple(feature.name for feature in features) for features in (own_features, site_features)]
    shape = (len(site_features),) if site_features else schema.shape
    if names[0] != names[1] or rows.shape != shape:
        differing = ", ".join(map(repr, sorted(set(names[0]) ^ set(names[1]))[:8]))
        difference = f"columns {differing}" if differing else f"shapes: {rows.shape}, {shape}"
        got = f"{config.data.data_dir}, from which the sites' files differ in {difference}"
        raise DataError("data-dir", got=got, allowed="the columns and shapes of the sites", hint=f"see {PAGE}")
    if not same_depth(rows.pixel_max, schema.pixel_max):
        got, allowed = (describe_pixels(value) for value in (rows.pixel_max, schema.pixel_max))
        hint = "save all images in the same way, or set pixel-bits"
        raise DataError("data-dir", got=got, allowed=f"{allowed}, as at the sites", hint=hint)
    if rows.preprocessing and schema.preprocessing and (clash := rows.preprocessing.find_clash(schema.preprocessing)):
        got, allowed = f"cells of kind {clash[0].kind!r}", f"cells of kind {clash[1].kind!r}, as at the sites"
        hint = "write the column in the same way as the sites"
        raise DataError(f"data-dir: column {clash[0].column!r}", got=got, allowed=allowed, hint=hint)
    check_outcomes(config, rows)
    if rows.findings is not None:
        rows.findings.check(rows.test_rows, "data-dir")
    for name, count in zip(("negative", "positive"), rows.class_counts(rows.test_rows), strict=True):
        if not count and rows.has_classes:
            got = f"{config.data.data_dir}, which has no {name} row"
            allowed = "rows of both classes, which the metrics need"
            hint = "set positive-label, or set data-dir to a file with both classes"
            raise DataError("data-dir", got=got, allowed=allowed, hint=hint)
    return rows.samples(rows.test_rows, find_scales(schema.scaling))
