"""deploy/peer-certificate.sh: companies with separate authorities connect, and other companies cannot join them."""

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from apps.parties.sites import policy_of
from apps.sites.site_config import read_site
from tests.battery.ports import addresses_for
from tests.clients.meshes import QUICK, closed
from tests.clients.test_identity import handshake
from tests.refusals import refuses
from vertical.policy import Policy, PolicyError
from vertical.transport.endpoint import Endpoint
from vertical.transport.identity import Identity, client_context, server_context
from vertical.transport.mesh import Mesh

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "peer-certificate.sh"
COMPANIES = ("bank", "retailer", "phone")


def script(folder: Path, *arguments: str, code: int = 0) -> tuple[str, str]:
    """Return the standard output and standard error of the script."""
    done = subprocess.run([SCRIPT, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def authority(name: str) -> str:
    return f"{name}/{name}-authority.crt"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder for each company and for a stranger, with the party's settings."""
    folder = tmp_path_factory.mktemp("companies")
    for name in (*COMPANIES, "stranger"):
        script(folder, name, name)
    for name in COMPANIES:
        everyone = [authority(other) for other in COMPANIES]
        (folder / f"{name}.toml").write_text(script(folder, name, name, *everyone)[0])
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "companies"))


def identity(folder: Path, name: str) -> Identity:
    return Identity.from_files(folder / name / f"{name}.crt", folder / name / f"{name}.key")


def policy(folder: Path, name: str) -> Policy:
    return policy_of(read_site({"site-config": str(folder / f"{name}.toml")}))


def test_three_companies_meet_over_tcp(made: Path) -> None:
    identities = [identity(made, name) for name in COMPANIES]
    certificates = [one.certificate for one in identities]
    addresses = addresses_for(3, made, "tcp")

    async def meet() -> None:
        meshes = []
        for me, name in enumerate(COMPANIES):
            peers = str(read_site({"site-config": str(made / f"{name}.toml")})["peer-ca"])
            meshes.append(Mesh(me, Endpoint(addresses, identities[me], certificates, peers, QUICK), 7))
        try:
            await asyncio.gather(*(mesh.join() for mesh in meshes))
        finally:
            await closed(*meshes)

    asyncio.run(meet())
    for me, name in enumerate(COMPANIES):
        names = policy(made, name).check_peers(certificates, me, certificates[me])
        assert names == ["" if other == name else other for other in COMPANIES]


def test_stranger_is_refused_by_tls_and_by_pins(made: Path) -> None:
    bank, phone, stranger = (identity(made, name) for name in ("bank", "phone", "stranger"))
    peers = str(made / "bank" / "bank-peers.pem")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_context(bank, [stranger.certificate], peers), client_context(stranger, [bank.certificate]))
    shown = [bank.certificate, phone.certificate, stranger.certificate]
    with refuses(PolicyError, "party 2 without a pin"):
        policy(made, "bank").check_peers(shown, 0, bank.certificate)


def test_renewed_certificate_needs_no_change_elsewhere(folder: Path) -> None:
    old = identity(folder, "retailer").certificate
    for suffix in ("crt", "key"):
        (folder / "retailer" / f"retailer.{suffix}").unlink()
    assert "same authority" in script(folder, "retailer", "retailer")[0]
    bank, phone = identity(folder, "bank").certificate, identity(folder, "phone").certificate
    new = identity(folder, "retailer").certificate
    assert new != old
    assert policy(folder, "bank").check_peers([bank, new, phone], 0, bank)[1] == "retailer"
    with refuses(PolicyError, "parties 1 and 2 under the pin 'retailer'"):
        policy(folder, "bank").check_peers([bank, new, old], 0, bank)


def test_secrets_are_readable_by_their_owner_only(made: Path) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in (made / "bank").iterdir()}
    secret = dict.fromkeys(("bank-authority.key", "bank.key", "bank-peers.pem"), 0o600)
    assert modes == {**secret, "bank-authority.crt": 0o644, "bank.crt": 0o644}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("bank",), 2, "usage"),
        (("bank", "../bank"), 2, "got company '../bank'"),
        (("bank", "ba nk"), 2, "got company 'ba nk'"),
        (("bank", "b" * 41), 2, "41 characters"),
        (('b"k', "bank"), 2, "without quotes"),
        (("bank", "bank"), 1, "bank.crt exists"),
        (("other", "other", authority("bank")), 1, "other.crt: no such file"),
        (("bank", "bank", "retailer/retailer.crt"), 2, "NAME-authority.crt"),
        (("bank", "bank", authority("nobody")), 1, "not a certificate"),
        (("bank", "bank", authority("bank")), 1, "got no other company"),
        (("bank", "bank", authority("phone"), authority("phone")), 2, "'phone' twice"),
        (("bank", "bank", authority("phone"), "copy-authority.crt"), 1, "the same certificate"),
        (("bank", "bank", "leaf-authority.crt"), 1, "of a party"),
        (("bank", "bank", "two-authority.crt"), 1, "several certificates"),
        (("bank", "bank", "key-authority.crt"), 1, "not a certificate"),
    ],
)
def test_bad_arguments_change_nothing(folder: Path, arguments: tuple[str, ...], code: int, words: str) -> None:
    phone = folder / "phone"
    shutil.copy(folder / authority("phone"), folder / "copy-authority.crt")
    shutil.copy(phone / "phone.crt", folder / "leaf-authority.crt")
    shutil.copy(phone / "phone-authority.key", folder / "key-authority.crt")
    both = (folder / authority("phone")).read_text() + (phone / "phone.crt").read_text()
    (folder / "two-authority.crt").write_text(both)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    output, errors = script(folder, *arguments, code=code)
    assert words in errors
    assert not output
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_lost_authority_key_is_not_replaced(folder: Path) -> None:
    for file in ("bank.crt", "bank.key", "bank-authority.key"):
        (folder / "bank" / file).unlink()
    assert "bring it back" in script(folder, "bank", "bank", code=1)[1]
    assert not (folder / "bank" / "bank.crt").exists()
