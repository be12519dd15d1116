#!/usr/bin/env python3
"""Applies a map of names with rust-analyzer: rename.py ROOT LOG MAP.tsv...

Each row pins one definition; rust-analyzer renames it wherever it is meant. All files are kept open in it, so
what it answers is of the texts as they are after the rows before. Lines never move, columns do.
"""
import json, os, re, subprocess, sys, threading, queue, time

root, log_path, maps = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3:]
uri = lambda p: "file://" + os.path.join(root, p)
rel = lambda u: os.path.relpath(u[len("file://"):], root)

class Server:
    def __init__(self):
        self.p = subprocess.Popen(["rust-analyzer"], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(log_path + ".ra", "wb"))
        self.answers, self.next, self.ready = {}, 0, threading.Event()
        self.cond = threading.Condition()
        self.quiescent = False
        threading.Thread(target=self.read, daemon=True).start()
    def send(self, m):
        b = json.dumps({"jsonrpc": "2.0", **m}).encode()
        self.p.stdin.write(b"Content-Length: %d\r\n\r\n" % len(b) + b); self.p.stdin.flush()
    def read(self):
        f = self.p.stdout
        while True:
            n = None
            while (line := f.readline().strip()):
                if line.lower().startswith(b"content-length:"): n = int(line.split(b":")[1])
            if n is None: return
            m = json.loads(f.read(n))
            if "method" in m:
                if "id" in m:
                    r = None
                    if m["method"] == "workspace/configuration": r = [CONFIG for _ in m["params"]["items"]]
                    self.send({"id": m["id"], "result": r})
                elif m["method"] == "experimental/serverStatus":
                    self.quiescent = m["params"].get("quiescent", False)
                    if m["params"].get("health") != "ok": print("status", m["params"], flush=True)
            else:
                with self.cond:
                    self.answers[m["id"]] = m; self.cond.notify_all()
    def ask(self, method, params, timeout=300):
        self.next += 1; i = self.next
        self.send({"id": i, "method": method, "params": params})
        with self.cond:
            if not self.cond.wait_for(lambda: i in self.answers, timeout): return {"error": {"message": "timeout"}}
            return self.answers.pop(i)

CONFIG = {"cargo": {"features": "all", "buildScripts": {"enable": True}, "targetDir": True, "cfgs": []},
          "checkOnSave": False, "procMacro": {"enable": True}, "cachePriming": {"enable": False}, "diagnostics": {"enable": False}}

def utf16_to_index(line, col):
    if line.isascii(): return col
    return len(line.encode("utf-16-le")[: 2 * col].decode("utf-16-le"))
def index_to_utf16(line, i): return len(line[:i].encode("utf-16-le")) // 2

texts, version = {}, {}
def load():
    for base, dirs, files in os.walk(root):
        dirs[:] = [d for d in dirs if d not in ("target", ".git", ".cache", "node_modules", "runs")]
        for f in files:
            if f.endswith(".rs"):
                p = os.path.relpath(os.path.join(base, f), root)
                texts[p] = open(os.path.join(root, p), encoding="utf-8").read()

def apply_edits(text, edits):
    lines = text.split("\n")
    starts, at = [], 0
    for l in lines: starts.append(at); at += len(l) + 1
    pos = lambda q: starts[q["line"]] + utf16_to_index(lines[q["line"]], q["character"])
    spans = sorted({(pos(e["range"]["start"]), pos(e["range"]["end"]), e["newText"]) for e in edits})
    out, last = [], 0
    for a, b, t in spans:
        assert a >= last, "overlap"
        out.append(text[last:a]); out.append(t); last = b
    return "".join(out) + text[last:]

def locate(row):
    """(path, line, column) of the definition now, or None."""
    path = moved.get(row["file"], row["file"])
    if path not in texts: return None
    if row["kind"] == "mod":
        folder, stem = os.path.split(path[:-3])
        if stem == "mod": folder, stem = os.path.split(folder)
        parents = [folder + ".rs", folder + "/mod.rs", folder + "/lib.rs", folder + "/main.rs"]
        for parent in parents:
            for n, l in enumerate(texts.get(parent, "").split("\n")):
                m = re.match(r"\s*(?:pub(?:\([a-z ]+\))?\s+)?mod\s+(%s)\s*;" % re.escape(row["old"]), l)
                if m: return parent, n, m.start(1)
        return None
    lines = texts[path].split("\n")
    pat = re.compile(r"(?<![A-Za-z0-9_])" + re.escape(row["old"]) + r"(?![A-Za-z0-9_])")
    want = int(row["line"]) - 1
    occ = re.search(r"\bocc:(\d+)", row["why"]); col0 = re.search(r"\[col (\d+)\]", row["why"]); col1 = re.search(r"\bcol:(\d+)", row["why"])
    for d in [0, *sorted(range(-40, 41), key=abs)]:
        n = want + d
        if not 0 <= n < len(lines): continue
        orig = originals.get(row["file"], [])
        hits = [m.start() for m in pat.finditer(lines[n])]
        if not hits: continue
        if d and not defines(row["kind"], row["old"], lines[n]): continue
        if occ and d == 0:
            k = int(occ.group(1)) - 1
            # Earlier rows of this line may have taken occurrences; occurrences are counted in the first text.
            o = [m.start() for m in pat.finditer(orig[n])] if n < len(orig) else hits
            k -= len(o) - len(hits) if len(hits) < len(o) and k >= len(hits) else 0
            if 0 <= k < len(hits): return path, n, hits[k]
        c = int(col0.group(1)) if col0 else int(col1.group(1)) - 1 if col1 else None
        if c is not None and len(hits) > 1 and d == 0 and n < len(orig):
            o = [len(orig[n][:m.start()].encode()) for m in pat.finditer(orig[n])]
            if c in o and len(o) == len(hits): return path, n, hits[o.index(c)]
            if c in o: return path, n, min(hits, key=lambda h: abs(h - c))
        for h in hits:
            if defines(row["kind"], row["old"], lines[n][max(0, h - 12):]): return path, n, h
        return path, n, hits[0]
    return None

def defines(kind, old, text):
    kw = {"fn": r"fn\s+", "method": r"fn\s+", "test": r"fn\s+", "struct": r"struct\s+", "enum": r"enum\s+", "trait": r"trait\s+", "type": r"type\s+|as\s+", "const": r"const\s+", "static": r"static\s+"}.get(kind)
    if kw: return re.search(r"(?:%s)%s\b" % (kw, re.escape(old)), text) is not None
    return re.search(r"\b%s\b" % re.escape(old), text) is not None

s = Server()
load()
originals = {p: t.split("\n") for p, t in texts.items()}
moved = {}
s.ask("initialize", {"processId": os.getpid(), "rootUri": uri(""), "workspaceFolders": [{"uri": uri(""), "name": "w"}],
  "initializationOptions": CONFIG, "capabilities": {"experimental": {"serverStatusNotification": True},
  "workspace": {"configuration": True, "workspaceEdit": {"documentChanges": True, "resourceOperations": ["create", "rename", "delete"]}},
  "textDocument": {"rename": {"prepareSupport": False}}}})
s.send({"method": "initialized", "params": {}})
t0 = time.time()
while not s.quiescent and time.time() - t0 < 900: time.sleep(1)
print("ready after", int(time.time() - t0), flush=True)
for p, t in texts.items():
    version[p] = 1
    s.send({"method": "textDocument/didOpen", "params": {"textDocument": {"uri": uri(p), "languageId": "rust", "version": 1, "text": t}}})
time.sleep(3)

def change(p, text):
    texts[p] = text; version[p] += 1
    s.send({"method": "textDocument/didChange", "params": {"textDocument": {"uri": uri(p), "version": version[p]}, "contentChanges": [{"text": text}]}})

def move(a, b):
    """Moves a file or a folder, and says so."""
    events = []
    for q in [q for q in texts if q == a or q.startswith(a + "/")]:
        t = b + q[len(a):]
        texts[t], version[t] = texts.pop(q), version.pop(q) + 1
        moved.update({k: t for k, v in moved.items() if v == q}); moved[q] = t
        os.makedirs(os.path.dirname(os.path.join(root, t)), exist_ok=True)
        os.rename(os.path.join(root, q), os.path.join(root, t))
        open(os.path.join(root, t), "w", encoding="utf-8").write(texts[t])
        s.send({"method": "textDocument/didClose", "params": {"textDocument": {"uri": uri(q)}}})
        s.send({"method": "textDocument/didOpen", "params": {"textDocument": {"uri": uri(t), "languageId": "rust", "version": version[t], "text": texts[t]}}})
        events += [{"uri": uri(q), "type": 3}, {"uri": uri(t), "type": 1}]
    s.send({"method": "workspace/didChangeWatchedFiles", "params": {"changes": events}})
    time.sleep(2)

rows = []
for m in maps:
    for line in open(m, encoding="utf-8"):
        c = line.rstrip("\n").split("\t")
        if len(c) < 6 or not c[1].strip().isdigit(): continue
        c += [""] * (7 - len(c))
        rows.append(dict(zip(("file", "line", "kind", "container", "old", "new", "why"), c)))
order = {"struct": 0, "enum": 0, "trait": 0, "type": 0, "macro": 0, "variant": 1, "field": 1, "const": 1, "static": 1, "fn": 2, "method": 2, "test": 2, "generic": 3, "local": 4, "param": 4}
def occ_of(r):
    m = re.search(r"\bocc:(\d+)|\[col (\d+)\]|\bcol:(\d+)", r["why"])
    return -int(next(g for g in m.groups() if g)) if m else 0
rows.sort(key=lambda r: (order.get(r["kind"], 5), "shorthand" in r["why"], r["file"], int(r["line"]), occ_of(r)))
log = open(log_path, "w")
done = failed = 0
t0 = time.time()
for n, r in enumerate(rows):
    at = locate(r)
    if at is None:
        failed += 1; print("NOTFOUND", json.dumps(r), file=log, flush=True); continue
    p, line, ix = at
    col = index_to_utf16(texts[p].split("\n")[line], ix)
    for attempt in range(4):
        a = s.ask("textDocument/rename", {"textDocument": {"uri": uri(p)}, "position": {"line": line, "character": col}, "newName": r["new"]})
        if "error" in a and ("content modified" in a["error"]["message"] or a["error"].get("code") in (-32801, -32802)): time.sleep(0.3); continue
        break
    if a.get("error") or not a.get("result"):
        failed += 1; print("REFUSED", json.dumps(r), a.get("error"), file=log, flush=True); continue
    count, moves = 0, []
    try:
        new = {}
        for ch in a["result"].get("documentChanges", []):
            if "kind" in ch:
                if ch["kind"] != "rename": raise AssertionError("a file operation " + ch["kind"])
                moves.append((rel(ch["oldUri"]), rel(ch["newUri"]))); continue
            q = rel(ch["textDocument"]["uri"])
            if q not in texts: raise AssertionError("edits " + q)
            new[q] = apply_edits(new.get(q, texts[q]), ch["edits"]); count += len(ch["edits"])
        for q, u in a["result"].get("changes", {}).items():
            q = rel(q); new[q] = apply_edits(new.get(q, texts[q]), u); count += len(u)
    except AssertionError as e:
        failed += 1; print("BROKEN", json.dumps(r), e, file=log, flush=True); continue
    for q, t in new.items(): change(q, t)
    for a_, b_ in moves: move(a_, b_)
    done += 1
    print("DONE", count, r["file"], r["line"], r["kind"], r["old"], r["new"], file=log, flush=True)
    if n % 100 == 0:
        print(n, len(rows), done, failed, int(time.time() - t0), flush=True)
        for q, t in texts.items():
            if version[q] > 1: open(os.path.join(root, q), "w", encoding="utf-8").write(t)
for q, t in texts.items():
    if version[q] > 1: open(os.path.join(root, q), "w", encoding="utf-8").write(t)
print("end", done, failed, int(time.time() - t0), flush=True)
