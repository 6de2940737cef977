"""Puts a program that answers each line with a line behind HTTP: POST rows, receive scores.

    python server.py 8080 build/score GRAPH EMBEDDINGS

One program scores one request at a time; start one per core.
"""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

program = subprocess.Popen(
    [*sys.argv[2:], "--keep-going"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
lock = threading.Lock()


class Scores(BaseHTTPRequestHandler):
    def do_POST(self):
        rows = self.rfile.read(int(self.headers["Content-Length"])).splitlines()
        rows = [row for row in rows if row.strip()]  # an empty line has no score
        answer = b""
        with lock:
            for start in range(0, len(rows), 32):  # fewer scores than a pipe holds
                part = rows[start : start + 32]
                program.stdin.write(b"\n".join(part) + b"\n")
                program.stdin.flush()
                answer += b"".join(program.stdout.readline() for _ in part)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer)


ThreadingHTTPServer(("", int(sys.argv[1])), Scores).serve_forever()
