// A program with grpc-js, the gRPC of Node, that knows onelog by its protos alone.
//
// `node interop_client.js CASE ADDRESS HTTP_ADDRESS PROTO_DIR [CA CERT KEY]` runs one case and ends
// with 0 if everything was as it should be. HTTP_ADDRESS has the server's metrics: they say whether
// a call that ended here ended there too, on a connection that is still open.
"use strict";

const assert = require("node:assert");
const fs = require("node:fs");
const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");
const protobuf = require("protobufjs");

const WAIT_MS = 30_000;
const SOON_MS = 300;
// Longer than the program runs.
const NEVER_MS = 600_000;
// Some times the window with which HTTP/2 begins.
const LARGE = Buffer.alloc(1 << 20, "onelog");
const AT_ONCE = 300;
const GZIP = 2;

const [, , name, address, httpAddress, protoDir, ca, certificate, key] = process.argv;
const loaded = loader.loadSync(
  ["kv", "pipeline", "queue"].map((each) => path.join(protoDir, "onelog", "v1", `${each}.proto`)),
  { includeDirs: [protoDir], keepCase: true, longs: String, enums: String, arrays: true, oneofs: true },
);
const { KV, Pipeline, Queue } = grpc.loadPackageDefinition(loaded).onelog.v1;
const { nested: rpc } = protobuf.parse(`
  syntax = "proto3";
  message Any { string type_url = 1; bytes value = 2; }
  message Status { int32 code = 1; string message = 2; repeated Any details = 3; }
  message ErrorInfo { string reason = 1; string domain = 2; }
`).root;

// A text in a field of bytes would be taken for base64.
const bytes = (text) => Buffer.from(text);
const soon = () => ({ deadline: Date.now() + WAIT_MS });

function credentials() {
  if (ca === undefined) return grpc.credentials.createInsecure();
  const own = certificate ? [fs.readFileSync(key), fs.readFileSync(certificate)] : [];
  return grpc.credentials.createSsl(fs.readFileSync(ca), ...own);
}

function open(Service, options = {}) {
  return new Service(address, credentials(), options);
}

// The answer of a unary call, or its error.
function call(client, method, request, metadata = new grpc.Metadata(), options = soon()) {
  return new Promise((resolve, reject) =>
    client[method](request, metadata, options, (error, answer) =>
      error ? reject(error) : resolve(answer),
    ),
  );
}

// All answers of a stream up to its end, or its error.
function collect(stream) {
  return new Promise((resolve, reject) => {
    const answers = [];
    stream.on("data", (answer) => answers.push(answer));
    stream.on("end", () => resolve(answers));
    stream.on("error", reject);
  });
}

async function failure(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new assert.AssertionError({ message: "the call did not fail" });
}

function reasonOf(error) {
  const [packed] = error.metadata.get("grpc-status-details-bin");
  const { details } = rpc.Status.decode(packed);
  const info = details.find((each) => each.typeUrl.endsWith("/google.rpc.ErrorInfo"));
  return rpc.ErrorInfo.decode(info.value).reason;
}

async function untilNothingIsUnderWay() {
  const end = Date.now() + WAIT_MS;
  for (;;) {
    const page = await (await fetch(`http://${httpAddress}/metrics`)).text();
    if (/^onelog_rpc_under_way 0(\.0)?$/m.test(page)) return;
    assert(Date.now() < end, "the server still works on a call that has ended");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

const cases = {
  async unary() {
    const kv = open(KV);
    const put = await call(kv, "Put", { key: bytes("js"), value: LARGE });
    const got = await call(kv, "Get", { key: bytes("js") });
    assert(got.item.value.equals(LARGE));
    assert.strictEqual(got.item.version, put.header.index);
  },

  async at_once() {
    const kv = open(KV);
    const keys = Array.from({ length: AT_ONCE }, (_, number) => `js-many-${number}`);
    await Promise.all(keys.map((each) => call(kv, "Put", { key: bytes(each), value: bytes(each) })));
    const answers = await Promise.all(keys.map((each) => call(kv, "Get", { key: bytes(each) })));
    assert.deepStrictEqual(answers.map((answer) => answer.item.value.toString()), keys);
  },

  async server_stream() {
    const kv = open(KV);
    for (const number of [0, 1, 2]) {
      await call(kv, "Put", { key: bytes(`js-scan-${number}`), value: LARGE.subarray(0, 100_000) });
    }
    const answers = await collect(kv.Scan({ range: { prefix: bytes("js-scan-") } }, soon()));
    const keys = answers.flatMap((answer) => answer.items.map((item) => item.key.toString()));
    assert.deepStrictEqual(keys.sort(), ["js-scan-0", "js-scan-1", "js-scan-2"]);
  },

  async watch() {
    const [kv, pipeline] = [open(KV), open(Pipeline)];
    const filters = [{ owner: "OWNER_KV", name: bytes("js-watched") }];
    const watch = pipeline.Watch({ filters, progress_ms: NEVER_MS }, soon());
    const event = await new Promise((resolve, reject) => {
      watch.on("error", reject);
      watch.on("data", ({ events }) => {
        if (events.length > 0) resolve(events[0]);
        else call(kv, "Put", { key: bytes("js-watched"), value: bytes("seen") }).catch(reject);
      });
    });
    watch.removeAllListeners("error").on("error", () => {});
    watch.cancel();
    assert.strictEqual(event.key.item.value.toString(), "seen");
  },

  async both_stream() {
    const stream = open(Pipeline).Execute(soon());
    const collected = collect(stream);
    for (let number = 1; number <= 20; number += 1) {
      const put = { key: bytes(`js-both-${number}`), value: LARGE.subarray(0, 50_000) };
      stream.write({ request_id: number, operations: [{ put }] });
    }
    stream.end();
    const answers = (await collected).flatMap((answer) => [answer, ...answer.more]);
    const ids = answers.map((answer) => Number(answer.request_id)).sort((a, b) => a - b);
    assert.deepStrictEqual(ids, Array.from({ length: 20 }, (_, number) => number + 1));
    assert(answers.every((answer) => answer.results[0].result === "put"));
  },

  async error() {
    const error = await failure(call(open(Queue), "GetQueue", { queue: "größe 100 %" }));
    assert.strictEqual(error.code, grpc.status.NOT_FOUND);
    assert(error.details.includes("'größe 100 %'"), error.details);
    assert.strictEqual(reasonOf(error), "QUEUE_UNKNOWN");
    const refused = await failure(collect(open(KV).Scan({ namespace: "none" }, soon())));
    assert.strictEqual(reasonOf(refused), "NAMESPACE_UNKNOWN");
  },

  async deadline() {
    const options = { deadline: Date.now() + SOON_MS };
    const watch = open(Pipeline).Watch({ progress_ms: NEVER_MS }, options);
    const error = await failure(collect(watch));
    assert.strictEqual(error.code, grpc.status.DEADLINE_EXCEEDED);
    await untilNothingIsUnderWay();
  },

  async cancellation() {
    const pipeline = open(Pipeline);
    const watch = pipeline.Watch({ progress_ms: NEVER_MS });
    watch.once("data", () => watch.cancel());
    const error = await failure(collect(watch));
    assert.strictEqual(error.code, grpc.status.CANCELLED);
    await untilNothingIsUnderWay();
    await call(pipeline, "ExecuteOnce", { operations: [] });
  },

  async metadata() {
    const some = new grpc.Metadata();
    some.add("note", "x".repeat(2_000));
    some.add("note", "again");
    some.add("bytes-bin", Buffer.from(Array.from({ length: 256 }, (_, byte) => byte)));
    await call(open(KV), "Put", { key: bytes("js"), value: bytes("noted") }, some);
    const wrong = new grpc.Metadata();
    wrong.set("onelog-shard", "99");
    const error = await failure(call(open(KV), "Get", { key: bytes("js") }, wrong));
    assert.strictEqual(reasonOf(error), "SHARD_UNKNOWN");
  },

  async gzip() {
    const kv = open(KV, { "grpc.default_compression_algorithm": GZIP });
    await call(kv, "Put", { key: bytes("js-gzip"), value: LARGE });
    assert((await call(kv, "Get", { key: bytes("js-gzip") })).item.value.equals(LARGE));
  },

  // Without a certificate, or with one of a stranger.
  async refused() {
    const error = await failure(call(open(KV), "Get", { key: bytes("js") }));
    assert.strictEqual(error.code, grpc.status.UNAVAILABLE);
  },
};

cases[name]().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
