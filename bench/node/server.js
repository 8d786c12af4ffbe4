// A proxy in front of an upstream, with @node-idempotency/core and its Redis
// adapter where the URL of a Redis is given:
//
//	node server.js <upstream host:port> [<redis url>]
//
// It says its address on the standard output, and ends when its standard input does.
"use strict";
const http = require("node:http");

const [upstream, redisURL] = process.argv.slice(2);
const [hostname, port] = upstream.split(":");
const agent = new http.Agent({ keepAlive: true, maxSockets: 1024, maxFreeSockets: 1024 });

// What concerns one connection only.
const hopByHop = new Set(["connection", "keep-alive", "transfer-encoding", "date"]);

function read(stream) {
  return new Promise((resolve, reject) => {
    const chunks = [];
    stream.on("data", (chunk) => chunks.push(chunk));
    stream.on("end", () => resolve(Buffer.concat(chunks).toString()));
    stream.on("error", reject);
  });
}

function forward(req, body) {
  return new Promise((resolve, reject) => {
    const out = http.request(
      { hostname, port, agent, path: req.url, method: req.method, headers: req.headers },
      async (answer) => {
        try {
          const headers = {};
          for (const [name, value] of Object.entries(answer.headers)) {
            if (!hopByHop.has(name)) headers[name] = value;
          }
          resolve({ statusCode: answer.statusCode, additional: { headers }, body: await read(answer) });
        } catch (error) {
          reject(error);
        }
      },
    );
    out.on("error", reject);
    out.end(body);
  });
}

async function main() {
  let idempotency;
  if (redisURL) {
    const { Idempotency } = require("@node-idempotency/core");
    const { RedisStorageAdapter } = require("@node-idempotency/storage-adapter-redis");
    const storage = new RedisStorageAdapter({ url: redisURL });
    await storage.connect();
    // As the others do, duplicates wait for the first request.
    idempotency = new Idempotency(storage, { inProgressStrategy: { wait: true } });
  }
  const server = http.createServer(async (req, res) => {
    try {
      const body = await read(req);
      const asked = { headers: req.headers, path: req.url, method: req.method, body };
      let answer = idempotency && (await idempotency.onRequest(asked));
      const replayed = answer !== undefined;
      if (!replayed) {
        answer = await forward(req, body);
        if (idempotency) await idempotency.onResponse(asked, answer);
      }
      if (replayed) res.setHeader("Idempotent-Replayed", "true");
      res.writeHead(answer.statusCode, answer.additional.headers);
      res.end(answer.body);
    } catch (error) {
      res.writeHead(500);
      res.end(String(error));
    }
  });
  server.listen(0, "127.0.0.1", () => console.log("127.0.0.1:" + server.address().port));
  server.keepAliveTimeout = 600000;
  process.stdin.on("end", () => process.exit(0));
  process.stdin.resume();
}

main();
