"""A stand-in for the HTTP interface of the Hugging Face Hub: one branch, no passwords.

Written from what huggingface_hub asks: repository, tree by pages, files by range behind a
redirection, uploads through git-lfs, commits. Files of SMALL_BYTES and more go through git-lfs, as
on the Hub.
"""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

SMALL_BYTES = 2000
PAGE_ENTRIES = 7
SHA = "c0ffee" + 34 * "0"
DIRECTORY = {"type": "directory", "oid": SHA, "size": 0}


class Hub(ThreadingHTTPServer):
    """Serves repositories until it is shut down; every commit makes its files visible at once.

    Attributes:
        files: Bytes by repository and path.
        answers: Status codes that the next requests get in place of an answer, by the method and a
            part of the path.
        commits: How many there were.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = {}
        self.blobs = {}
        self.answers = {}
        self.commits = 0
        self.lock = threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def entries(self, repository, folder, recursive):
        """Files and folders below a folder, as the tree lists them."""
        prefix = f"{folder}/" if folder else ""
        found = {}
        for path, data in sorted(self.files[repository].items()):
            if not path.startswith(prefix):
                continue
            parts = path.removeprefix(prefix).split("/")
            for depth in range(1, len(parts)):
                above = prefix + "/".join(parts[:depth])
                if recursive or depth == 1:
                    found.setdefault(above, DIRECTORY | {"path": above})
            if recursive or len(parts) == 1:
                found[path] = describe(path, data)
        return list(found.values()) if found or not folder else None


def describe(path, data):
    entry = {"type": "file", "oid": hashlib.sha1(data).hexdigest(), "size": len(data), "path": path}
    if len(data) >= SMALL_BYTES:
        digest = hashlib.sha256(data).hexdigest()
        entry["lfs"] = {"oid": digest, "size": len(data), "pointerSize": 130}
    return entry


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def _serve(self):
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        self.query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        for (method, part), codes in self.server.answers.items():
            if codes and method == self.command and part in path:
                self._answer(codes.pop(0), b'{"error": "not now"}')
                return
        for pattern, serve in ROUTES:
            if found := re.fullmatch(pattern, f"{self.command} {path}"):
                if found.groupdict().get("repository", "") not in {"", *self.server.files}:
                    self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
                else:
                    serve(self, *found.groups())
                return
        self._answer(501, f"{self.command} {self.path} is not known here".encode())

    do_HEAD = do_GET = do_POST = do_PUT = _serve  # noqa: N815

    def _answer(self, status, data=b"", headers=None):
        self.send_response(status)
        for name, value in {"Content-Length": len(data), **(headers or {})}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _json(self, value, headers=None):
        headers = {"Content-Type": "application/json", **(headers or {})}
        self._answer(200, json.dumps(value).encode(), headers)

    def _info(self, repository):
        siblings = [{"rfilename": name} for name in self.server.files[repository]]
        about = {"_id": SHA, "id": repository, "sha": SHA, "private": False, "tags": []}
        self._json(about | {"siblings": siblings})

    def _validate(self):
        """What the Hub says of the metadata of a README.md."""
        self._json({"errors": [], "warnings": []})

    def _create(self):
        asked = json.loads(self.body)
        repository = f"{asked.get('organization') or 'who'}/{asked['name']}"
        self.server.files.setdefault(repository, {})
        url = f"{self.server.url}/datasets/{repository}"
        self._json({"url": url, "name": repository, "id": repository})

    def _tree(self, repository, folder=None):
        is_deep = self.query.get("recursive", "").lower() in {"1", "true"}
        entries = self.server.entries(repository, folder or "", is_deep)
        if entries is None:
            self._answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            return
        first = int(self.query.get("cursor", 0))
        headers = {}
        if first + PAGE_ENTRIES < len(entries):
            query = urlencode(self.query | {"cursor": first + PAGE_ENTRIES})
            address = f"{self.server.url}{urlsplit(self.path).path}?{query}"
            headers["Link"] = f'<{address}>; rel="next"'
        self._json(entries[first : first + PAGE_ENTRIES], headers)

    def _resolve(self, repository, path):
        if (data := self.server.files[repository].get(path)) is None:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": SHA})
        elif len(data) >= SMALL_BYTES:
            etag = f'"{hashlib.sha256(data).hexdigest()}"'
            headers = {"X-Repo-Commit": SHA, "X-Linked-Size": len(data), "X-Linked-ETag": etag}
            headers["Location"] = f"{self.server.url}/content/{repository}/{path}"
            self._answer(302, b"", headers)
        else:
            self._send(data)

    def _content(self, repository, path):
        self._send(self.server.files[repository][path])

    def _send(self, data):
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": SHA}
        headers["Accept-Ranges"] = "bytes"
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, stop = int(found[1]), min(int(found[2] or len(data) - 1) + 1, len(data))
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
            self._answer(206 if start < len(data) else 416, data[start:stop], headers)
        else:
            self._answer(200, data, headers)

    def _preupload(self, _repository):
        found = []
        for each in json.loads(self.body)["files"]:
            mode = "lfs" if each["size"] >= SMALL_BYTES else "regular"
            found.append({"path": each["path"], "uploadMode": mode, "shouldIgnore": False})
        self._json({"files": found})

    def _lfs_batch(self, repository):
        objects = []
        for each in json.loads(self.body)["objects"]:
            address = f"{self.server.url}/lfs/{repository}/{each['oid']}"
            upload = {"actions": {"upload": {"href": address, "header": {}}}}
            objects.append(each | ({} if each["oid"] in self.server.blobs else upload))
        self._json({"transfer": "basic", "objects": objects})

    def _lfs_put(self, _repository, oid):
        assert hashlib.sha256(self.body).hexdigest() == oid
        self.server.blobs[oid] = self.body
        self._answer(200)

    def _commit(self, repository):
        lines = [json.loads(line) for line in self.body.splitlines()]
        with self.server.lock:
            files = dict(self.server.files[repository])
            for line in lines:
                path = line["value"].get("path")
                if line["key"] == "file":
                    files[path] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "lfsFile":
                    files[path] = self.server.blobs[line["value"]["oid"]]
                elif line["key"] == "deletedFile":
                    del files[path]
                elif line["key"] == "deletedFolder":
                    above = path.rstrip("/") + "/"
                    files = {name: files[name] for name in files if not name.startswith(above)}
            self.server.files[repository] = files
            self.server.commits += 1
        url = f"{self.server.url}/datasets/{repository}/commit/{SHA}"
        self._json({"success": True, "commitUrl": url, "commitOid": SHA, "hookOutput": ""})


NAME = "(?P<repository>[^/]+/[^/]+)"
ROUTES = [
    ("POST /api/repos/create", _Handler._create),
    ("POST /api/validate-yaml", _Handler._validate),
    (f"GET /api/datasets/{NAME}", _Handler._info),
    (f"GET /api/datasets/{NAME}/tree/[^/]+(?:/(?P<folder>.+))?", _Handler._tree),
    (f"(?:GET|HEAD) /datasets/{NAME}/resolve/[^/]+/(?P<path>.+)", _Handler._resolve),
    (f"(?:GET|HEAD) /content/{NAME}/(?P<path>.+)", _Handler._content),
    (f"GET /api/models/{NAME}/revision/[^/]+", _Handler._info),
    (f"GET /api/models/{NAME}/tree/[^/]+(?:/(?P<folder>.+))?", _Handler._tree),
    (f"(?:GET|HEAD) /{NAME}/resolve/[^/]+/(?P<path>.+)", _Handler._resolve),
    (f"POST /api/datasets/{NAME}/preupload/[^/]+", _Handler._preupload),
    (f"POST /datasets/{NAME}\\.git/info/lfs/objects/batch", _Handler._lfs_batch),
    (f"PUT /lfs/{NAME}/(?P<oid>[0-9a-f]+)", _Handler._lfs_put),
    (f"POST /api/datasets/{NAME}/commit/[^/]+", _Handler._commit),
]
