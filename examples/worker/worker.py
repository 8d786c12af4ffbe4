"""Orders, kept in SQLite. README.md walks through it.

    worker.py :9001    serves POST /orders and GET /orders?job=…
    worker.py count    prints how many orders there are
"""
import json
import os
import sqlite3
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


def database():
    db = sqlite3.connect("orders.db", timeout=30, isolation_level=None)
    db.execute("""CREATE TABLE IF NOT EXISTS orders (
        number INTEGER PRIMARY KEY,
        job    TEXT NOT NULL UNIQUE, -- one order for one intent
        item   TEXT NOT NULL)""")
    return db


def order_of(db, job):
    row = db.execute("SELECT number, item FROM orders WHERE job = ?", [job]).fetchone()
    return row and {"number": row[0], "item": row[1]}


class Worker(BaseHTTPRequestHandler):
    def do_POST(self):
        item = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["item"]
        job = self.headers["Idempotency-Job"]
        while os.path.exists("worker.slow"):  # so that a timeout can be seen
            time.sleep(0.05)
        db = database()
        # All that is one intent's goes into one transaction. Whoever comes second
        # with the same job changes nothing, and reads what the first has done.
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO orders (job, item) VALUES (?, ?) ON CONFLICT (job) DO NOTHING", [job, item])
        order = order_of(db, job)
        db.execute("COMMIT")
        if os.path.exists("worker.dies"):  # after the effect, and before the answer
            os.remove("worker.dies")
            self.close_connection = True
            return
        self.answer(201, order)

    def do_GET(self):
        job = parse_qs(urlsplit(self.path).query)["job"][0]
        order = order_of(database(), job)
        self.answer(200 if order else 404, order)

    def answer(self, status, content):
        body = json.dumps(content).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if sys.argv[1] == "count":
    print(database().execute("SELECT count(*) FROM orders").fetchone()[0])
else:
    database()
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1].strip(":"))), Worker)
    with open("worker.pid", "w") as pid:  # it listens by now
        pid.write(f"{os.getpid()}\n")
    server.serve_forever()
