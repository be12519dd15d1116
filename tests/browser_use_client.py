"""Runs a browser-use agent as it is against `furrow policy --serve-only`: none of its requests is refused,
and its structured output parses. The model is random, so what it does is not looked at.

usage: browser_use_client.py FURROW BROWSER
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

os.environ |= {"ANONYMIZED_TELEMETRY": "false", "BROWSER_USE_LOGGING_LEVEL": "result"}

import httpx
from browser_use import Agent, BrowserProfile, ChatOpenAI

furrow, browser = sys.argv[1:]
STEPS = 3
statuses = []
PAGE = b"<title>Shop</title><h1>Shop</h1><button>Buy</button> <a href='/'>Home</a> <input name=q>"
# The agent's instructions have some 40,000 bytes, and a random tokenizer an id for nearly each of them.
LIMITS = ["engine.context_tokens_max=400000", "engine.kv_tokens=900000", "serve.max_tokens=4096"]


class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_):
        pass


async def note_status(response):
    await response.aread()
    statuses.append((response.status_code, response.text[:300]))


async def run(address, page):
    client = httpx.AsyncClient(event_hooks={"response": [note_status]}, timeout=600)
    llm = ChatOpenAI(model="tiny", base_url=address, api_key="none", http_client=client)
    profile = BrowserProfile(executable_path=browser, headless=True, chromium_sandbox=False)
    agent = Agent(
        task=f"Open {page} and press Buy.",
        llm=llm,
        browser_profile=profile,
        llm_timeout=600,
        step_timeout=900,
    )
    return await agent.run(max_steps=STEPS)


with tempfile.TemporaryDirectory() as folder:
    checkpoint = Path(folder) / "tiny"
    subprocess.run([furrow, "checkpoint", "init", "--size", "tiny", checkpoint], check=True)
    # What a random model writes fills the history: as many positions as LIMITS allow.
    config = json.loads((checkpoint / "config.json").read_text())
    config["llm_config"]["max_position_embeddings"] = 400_000
    (checkpoint / "config.json").write_text(json.dumps(config))
    settings = [part for limit in LIMITS for part in ("--set", f"policy.{limit}")]
    command = [furrow, "policy", "--serve-only", checkpoint, "--serve", "127.0.0.1:0", *settings]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    site = HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    try:
        served = next(line for line in server.stderr if " served at " in line)
        address = served.split(" served at ")[1].strip()
        history = asyncio.run(run(address, f"http://127.0.0.1:{site.server_port}/"))
    finally:
        server.terminate()
    outputs = history.model_outputs()
    errors = history.errors()
    print(f"browser-use: {len(statuses)} requests, {len(outputs)} structured outputs, errors {errors}")
    assert statuses and all(status == 200 for status, _ in statuses), statuses
    assert outputs, history.errors()
    assert server.wait() == 0
