"""Reads and writes over TLS: the certificates are read on the driver and travel with the tasks."""

import pickle
import shutil
from pathlib import Path

import pytest

from onelog import Client, Tls
from onelog.errors import InvalidArgument
from onelog.spark.columns.views import VIEWS
from onelog.spark.load.settings import parse_write
from onelog.spark.options import ReadOptions
from onelog.spark.table import load_table
from tests.cluster.transport.test_transport_tls import certificate
from tests.onelog.client.serving import serving

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates")


def test_a_table_is_read_over_tls_also_where_the_files_are_not(tmp_path: Path) -> None:
    certificate(tmp_path, "server")
    ca, key = tmp_path / "server.crt", tmp_path / "server.key"
    flags = ("--tls-cert", str(ca), "--tls-key", str(key), "--shards", "1")
    with serving(tmp_path / "data", *flags) as endpoint:
        trusting = Tls(ca=ca.read_bytes(), server_name="localhost")
        with Client(endpoint, timeout_s=60, tls=trusting) as client:
            client.connect()  # a table waits for seconds only
        options = {"view": "log", "endpoint": endpoint, "tls_ca": str(ca), "tls_name": "localhost"}
        table = load_table(ReadOptions.parse(options, VIEWS))
        splits = table.splits()
        travelled = pickle.loads(pickle.dumps(table))
        ca.unlink()
        rows = [row for split in splits for row in travelled.batches(split, None)]
        assert sum(batch.num_rows for batch in rows) > 0


@pytest.mark.parametrize(
    "given", [{"tls_cert": "x"}, {"tls": "perhaps"}, {"tls_ca": "nowhere.pem"}]
)
def test_certificates_that_cannot_be_used_are_refused_alike(given: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="OPTION_INVALID"):
        load_table(ReadOptions.parse({"view": "log", "endpoint": "127.0.0.1:1", **given}, VIEWS))
    with pytest.raises(InvalidArgument, match="OPTION_INVALID"):
        parse_write({"to": "keys", "endpoint": "127.0.0.1:1", **given})
