"""The API of the cluster in `fake`: the part of Kubernetes' API that horovodrun uses."""

import contextlib
import copy
import json
import time
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

TOKEN = "the-token-of-a-user"


def status(code, reason, message):
    return code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message}


def now():
    return datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")


def moment(text):
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def selected(obj, query):
    labels = obj["metadata"].get("labels", {})
    selectors = [pair.split("=") for pair in query.get("labelSelector", "").split(",") if pair]
    fields = [pair.split("=") for pair in query.get("fieldSelector", "").split(",") if pair]
    return all(labels.get(key) == value for key, value in selectors) and all(
        obj.get("involvedObject", {}).get(key.rpartition(".")[2]) == value for key, value in fields
    )


def handler(cluster):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def reply(self, code, body):
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def parse(self, verb):
            parts = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            words = parts.path.strip("/").split("/")
            at = words.index("namespaces")
            resource, name = words[at + 2], "/".join(words[at + 3 :])
            verb = {"get": "watch" if "watch" in query else "get" if name else "list"}.get(verb, verb)
            cluster.requests.append((verb, resource, name, query))
            if self.headers.get("authorization") != f"Bearer {TOKEN}":
                self.reply(*status(401, "Unauthorized", "Unauthorized"))
            elif (verb, resource) in cluster.denied:
                text = f'{resource}.batch is forbidden: User "bob" cannot {verb} resource "{resource}"'
                self.reply(*status(403, "Forbidden", f'{text} in API group "batch" in the namespace "{words[at + 1]}"'))
            else:
                return resource, name, query
            return None

        def body(self):
            return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

        def do_POST(self):
            obj = self.body()
            if found := self.parse("create"):
                created = cluster.create(found[0], obj)
                cluster.answering("create", found[0])
                with contextlib.suppress(OSError):  # the client has disconnected
                    self.reply(*created)

        def do_PATCH(self):
            change = self.body()
            if found := self.parse("patch"):
                with cluster.changed:
                    obj = cluster.objects[found[0]][found[1]]
                    obj["spec"].update(change["spec"])
                    cluster.put(found[0], obj)
                    cluster.control(obj)
                self.reply(200, obj)

        def do_DELETE(self):
            if found := self.parse("delete"):
                self.reply(*cluster.delete(found[0], found[1]))

        def do_GET(self):
            found = self.parse("get")
            if found is None:
                return
            resource, name, query = found
            if name.endswith("/log"):
                self.log(name.partition("/")[0], query)
            elif name:
                obj = cluster.objects[resource].get(name)
                missing = status(404, "NotFound", f'{resource} "{name}" not found')
                self.reply(*(missing if obj is None else (200, obj)))
            elif "watch" in query:
                self.watch(resource, query)
            else:
                with cluster.changed:
                    items = [each for each in cluster.objects[resource].values() if selected(each, query)]
                    text = {"items": copy.deepcopy(items), "metadata": {"resourceVersion": str(cluster.version)}}
                self.reply(200, text)

        def stream(self, content):
            self.send_response(200)
            self.send_header("Content-Type", content)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()

        def chunk(self, data):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

        def watch(self, resource, query):
            self.stream("application/json")
            seen = int(query["resourceVersion"])
            until = time.monotonic() + float(query["timeoutSeconds"])
            with contextlib.suppress(OSError):
                while not cluster.over and time.monotonic() < until:
                    with cluster.changed:
                        new = [each for each in cluster.history if each[0] > seen]
                        if not new:
                            cluster.changed.wait(0.5)
                            continue
                    for version, resource_of, kind, obj in new:
                        seen = version
                        if resource_of == resource and selected(obj, query):
                            self.chunk(json.dumps({"type": kind, "object": obj}).encode() + b"\n")
                self.chunk(b"")
            self.close_connection = cluster.over

        def log(self, name, query):
            process = cluster.processes.get(name)
            if process is None:
                text = f'container "horovod" in pod "{name}" is waiting to start'
                self.reply(*status(400, "BadRequest", text))
                return
            self.stream("text/plain")
            since, rest, sent = query.get("sinceTime", ""), b"", 0
            with contextlib.suppress(OSError), open(cluster.log_of(name), "rb") as file:
                times = cluster.__dict__.setdefault("times", {}).setdefault(name, [])
                while True:
                    over = process.poll() is not None
                    *lines, rest = (rest + file.read()).split(b"\n")
                    for line in lines:
                        if sent == len(times):
                            times.append(now())
                        if not since or moment(times[sent]) >= moment(since):
                            self.chunk(times[sent].encode() + b" " + line + b"\n")
                        sent += 1
                    if over or cluster.over:
                        break
                    time.sleep(0.02)
                self.chunk(b"")

    return Handler
