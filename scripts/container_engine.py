"""The container engine of this machine: Docker, or podman with podman-compose.

Docker is used if its engine answers, otherwise podman; missing parts of podman are installed, with
a message. If no registry can be reached, debootstrap makes the base image.

Environment variables:

* ``COMPOSE_TEST_ENGINE``: ``docker`` or ``podman``;
* ``COMPOSE_TEST_BUILD_ARGS``: further flags of ``podman build``;
* ``COMPOSE_TEST_RUN_ARGS``: further flags of ``podman run``;
* ``COMPOSE_TEST_MIRROR``: where debootstrap takes Debian from;
* ``COMPOSE_TEST_PIP_CONF``, ``COMPOSE_TEST_CA``: pip's configuration and the certificate
  authorities for the build; by default those of this machine.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
BASE_IMAGE = "localhost/onelog-compose-test-python"
SUITE = "bookworm"
BUILD_S_MAX = 1800
COMMAND_S_MAX = 300
# By default podman asks for the highest limits, which not every machine allows.
LIMITS = ("--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096")
# pip's configuration and certificates: taken from here, used in the build, not kept in the image.
SECRETS = {
    "pip": ("COMPOSE_TEST_PIP_CONF", "/etc/pip.conf"),
    "ca": ("COMPOSE_TEST_CA", "/etc/ssl/certs/ca-certificates.crt"),
}


def say(text: str) -> None:
    """Print a line of progress."""
    print(text, flush=True)


def run(
    *command: str, check: bool = True, timeout_s: float = COMMAND_S_MAX
) -> subprocess.CompletedProcess[str]:
    """Run a command; its output is shown if it fails."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        text=True,
        timeout=timeout_s,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if check and done.returncode:
        sys.exit(f"failed with {done.returncode}: {shlex.join(command)}\n{done.stdout}")
    return done


@dataclass(frozen=True)
class Engine:
    """The commands that control containers and compose projects."""

    name: str
    compose_command: tuple[str, ...]

    def compose(self, *arguments: str, timeout_s: float = COMMAND_S_MAX) -> str:
        """Run a command of compose for the project's file."""
        return str(run(*self.compose_command, *arguments, timeout_s=timeout_s).stdout)

    def call(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command of the engine."""
        return run(self.name, *arguments, check=check)

    def build(self) -> None:
        """Build the image as the compose file says: it is the same for all nodes."""
        self.compose("build", "n1", timeout_s=BUILD_S_MAX)


def find_engine(project: str) -> Engine:
    """Return the engine of this machine; install podman if there is none."""
    asked = os.environ.get("COMPOSE_TEST_ENGINE")
    has_docker = shutil.which("docker") and not run("docker", "info", check=False).returncode
    if asked == "docker" or (asked is None and has_docker):
        return Engine("docker", ("docker", "compose", "--project-name", project))
    _install_podman()
    return Engine("podman", (*_podman_compose(), "--project-name", project))


def _install_podman() -> None:
    wanted = {"podman": "podman", "debootstrap": "debootstrap"}
    missing = [package for command, package in wanted.items() if not shutil.which(command)]
    if not Path("/usr/lib/cni/bridge").exists() and not shutil.which("netavark"):
        missing.append("containernetworking-plugins")
    if missing:
        say(f"installing {', '.join(missing)} with apt-get")
        run("apt-get", "update", "-qq")
        run(
            "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "--yes", "-qq",
            "--no-install-recommends", "runc", *missing, timeout_s=BUILD_S_MAX,
        )  # fmt: skip


def _podman_compose() -> tuple[str, ...]:
    found = shutil.which("podman-compose")
    if found is None:
        environment = ROOT / "build" / "podman-compose"
        found = str(environment / "bin" / "podman-compose")
        if not Path(found).exists():
            say(f"installing podman-compose with pip in {environment}")
            run(sys.executable, "-m", "venv", str(environment))
            run(str(environment / "bin" / "pip"), "install", "--quiet", "podman-compose>=1.3,<2")
    # Without layers nothing of the build is left behind but the image.
    build = ["--network=host", "--layers=false", *_secrets(), *_flags("COMPOSE_TEST_BUILD_ARGS")]
    started = [*LIMITS, *_flags("COMPOSE_TEST_RUN_ARGS")]
    return (
        found,
        "--in-pod=false",  # a pod would have one address for all nodes
        f"--podman-build-args={shlex.join(build)}",
        f"--podman-run-args={shlex.join(started)}",
    )


def _secrets() -> list[str]:
    flags = []
    for name, (variable, default) in SECRETS.items():
        path = Path(os.environ.get(variable, default))
        if path.is_file():
            flags.append(f"--secret=id={name},src={path}")
    return flags


def _flags(variable: str) -> list[str]:
    return shlex.split(os.environ.get(variable, ""))


def base_image(engine: Engine, wanted: str) -> str:
    """Return the image to build on: the one of ``.env``, or one that is made here."""
    if not engine.call("image", "inspect", wanted, check=False).returncode:
        return wanted
    if not engine.call("pull", wanted, check=False).returncode:
        return wanted
    if engine.call("image", "inspect", BASE_IMAGE, check=False).returncode:
        say(f"{wanted} cannot be pulled: making a base image of Debian {SUITE} by debootstrap")
        _debootstrap(engine)
    return BASE_IMAGE


def _debootstrap(engine: Engine) -> None:
    with tempfile.TemporaryDirectory(prefix="onelog-base-") as place:
        root = Path(place) / "root"
        mirror = _flags("COMPOSE_TEST_MIRROR")
        run(
            "debootstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates",
            SUITE, str(root), *mirror, timeout_s=BUILD_S_MAX,
        )  # fmt: skip
        for unused in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale"):
            shutil.rmtree(root / unused)
        archive = Path(place) / "root.tar"
        run("tar", "-C", str(root), "-cf", str(archive), ".")
        engine.call("import", str(archive), BASE_IMAGE)
