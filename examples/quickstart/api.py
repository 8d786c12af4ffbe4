"""An API to try the gateway with. Whoever posts, pays: it knows nothing of
repetitions. A file named "slow" makes it take its time."""
import os
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class API(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        payment = f"paid as {uuid.uuid4()}\n"
        with open("payments", "a") as payments:
            payments.write(payment)
        while os.path.exists("slow"):
            time.sleep(0.05)
        self.send_response(201)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(payment)))
        self.end_headers()
        self.wfile.write(payment.encode())


server = ThreadingHTTPServer(("localhost", 8081), API)
with open("api.pid", "w") as pid:  # it listens by now
    pid.write(f"{os.getpid()}\n")
server.serve_forever()
