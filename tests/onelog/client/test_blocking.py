"""The blocking client: the same as the async one, and nothing of it is left after close."""

import ast
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from onelog import Client
from onelog.client.blocking import LoopThread
from onelog.errors import AlreadyExists, FailedPrecondition, Unavailable
from scripts import generate_sync_client
from tests.onelog.client.serving import ROOT, serving


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("data")) as endpoint:
        yield endpoint


def test_the_files_are_what_would_be_written_now() -> None:
    """If this fails: ``python -m scripts.generate_sync_client``."""
    written = {path.name: path.read_text() for path in generate_sync_client.TARGET.glob("*.py")}
    assert written == generate_sync_client.generate()


def test_every_public_method_of_the_core_has_its_blocking_twin() -> None:
    skipped = {"__init__", "__aiter__", "__anext__", "__aenter__", "__aexit__"}
    for name in generate_sync_client.MODULES:
        cores = ast.parse((generate_sync_client.HERE / f"{name}.py").read_text())
        twins = ast.parse((generate_sync_client.TARGET / f"{name}.py").read_text())
        methods = {
            (node.name.removeprefix("Async"), each.name)
            for tree in (cores,)
            for node in tree.body
            if isinstance(node, ast.ClassDef) and node.name.startswith("Async")
            for each in node.body
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            and not each.name.startswith("_")
            and each.name not in skipped
            and not any(
                isinstance(d, ast.Name) and d.id == "classmethod" for d in each.decorator_list
            )
        }
        found = {
            (node.name, each.name)
            for node in twins.body
            if isinstance(node, ast.ClassDef)
            for each in node.body
            if isinstance(each, ast.FunctionDef)
        }
        assert methods <= found, name


def test_calls_block_iterate_and_raise_as_the_core_does(endpoint: str) -> None:
    with Client(endpoint, timeout_s=30) as client:
        kv = client.kv
        version = kv.put("a", "1")
        found = kv.get("a")
        assert found is not None
        assert (found.text, found.version) == ("1", version)
        with pytest.raises(AlreadyExists):
            kv.put("a", "2", expected_version=0)
        kv.put_many((f"s{n:04}", b"") for n in range(1_000))
        assert [item.key for item in kv.scan("s")] == [b"s%04d" % n for n in range(1_000)]
        for item in kv.scan("s"):
            assert item.key == b"s0000"
            break
        with kv.lease(10, key="l{1}") as lease, kv.lock("lock{1}") as lock:
            kv.put("l{1}", "x", lease=lease)
            assert lock.is_held
        assert not kv.exists("l{1}")
        batch = client.transact().put("b{1}", "1").increment("n{1}")
        assert batch.commit().index
        assert batch.results == [None, 1]
        assert type(client.namespace("default")) is Client


def test_many_threads_share_a_client(endpoint: str) -> None:
    with Client(endpoint, timeout_s=30) as client, ThreadPoolExecutor(8) as pool:
        numbers = sorted(pool.map(lambda _: client.kv.increment("shared"), range(200)))
        assert numbers == list(range(1, 201))


def test_nothing_is_left_after_close(endpoint: str) -> None:
    """In a process of its own: other tests have threads of their own."""
    script = (
        "import gc, threading\n"
        "from onelog import Client\n"
        "def work():\n"
        f"    client = Client({endpoint!r}, timeout_s=30)\n"
        "    client.kv.put('a', '1')\n"
        "    watch = client.watch()\n"
        "    watch.start()\n"
        "    scan = client.kv.scan('a')\n"
        "    next(scan)\n"
        "    client.close()\n"
        "    client.close()\n"
        "work()\n"
        "gc.collect()\n"
        "for each in threading.enumerate()[1:]:\n"
        "    each.join(20)  # gRPC's own is told to end, and takes its time\n"
        "assert threading.enumerate() == [threading.main_thread()], threading.enumerate()\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], cwd=ROOT, check=True, timeout=60)


def test_a_closed_client_says_so(endpoint: str) -> None:
    client = Client(endpoint, timeout_s=30)
    client.kv.put("a", "1")
    client.close()
    with pytest.raises(FailedPrecondition, match="CLIENT_CLOSED"):
        client.kv.get("a")


def test_an_interrupted_call_is_cancelled() -> None:
    thread = LoopThread()
    ended = threading.Event()

    async def endless() -> None:
        import asyncio

        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def interrupt() -> None:
        os.kill(os.getpid(), 2)

    timer = threading.Timer(0.1, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        thread.run(endless())
    assert ended.wait(10)
    thread.close()
    assert "onelog client" not in [each.name for each in threading.enumerate()]


def test_a_client_of_before_a_fork_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without forking this process: its thread would not survive it either."""
    client = Client("127.0.0.1:1")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(FailedPrecondition, match="FORKED"):
        client.kv.get("a")
    monkeypatch.undo()
    client.close()


def test_nobody_there_is_said() -> None:
    with pytest.raises(Unavailable, match="NOT_CONNECTED"), Client("127.0.0.1:1", timeout_s=0.3):
        pass


def test_importing_onelog_alone_costs_nothing(tmp_path: Path) -> None:
    script = (
        "import sys, onelog; "
        "assert not {'grpc', 'numpy', 'asyncio'} & set(sys.modules); "
        "assert 'Client' in dir(onelog); onelog.Client; assert 'asyncio' in sys.modules; "
        "from onelog.client import client; "
        "parts = {'node', 'cluster', 'projections', 'ual', 'snapshot'}; "
        "others = {'grpc', 'numpy'} | {f'onelog.{each}' for each in parts}; "
        "assert not others & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=60)
