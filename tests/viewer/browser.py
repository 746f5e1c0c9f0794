# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium through its driver: the W3C WebDriver protocol over urllib, so that Debian's chromium and
chromium-driver are all that a test needs."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

SKIPPED = 77  # exit code of a test that cannot run here

CHROMIUM = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--force-device-scale-factor=1")


def is_missing():
    """Returns what this machine lacks of a browser and its driver; empty if it has both."""
    return " and ".join(name for name in ("chromium", "chromedriver") if shutil.which(name) is None)


class Browser:
    """A browser with a new profile, which ends with the `with` block."""

    def __init__(self, width=1280, height=900):
        self.folder = tempfile.TemporaryDirectory()
        options = {"args": [*CHROMIUM, f"--user-data-dir={self.folder.name}/profile", f"--window-size={width},{height}"]}
        log = Path(self.folder.name) / "driver.log"
        with open(log, "w") as output:
            self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=output, stderr=subprocess.STDOUT)
        self.root = self.session = ""
        try:
            self.root = f"http://127.0.0.1:{self._port(log)}"
            answer = self._send("POST", "/session", {"capabilities": {"alwaysMatch": {
                "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}}})
            self.session = f"/session/{answer['sessionId']}"
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        try:
            if self.session:
                self._send("DELETE", self.session)
        finally:
            self.driver.terminate()
            self.driver.wait(timeout=20)
            for _ in range(20):  # the browser's last processes may still write there
                try:
                    self.folder.cleanup()
                    break
                except OSError:
                    time.sleep(0.1)

    def _port(self, log):
        """The driver chooses a free port and prints it."""
        for _ in range(200):
            for line in log.read_text().splitlines():
                if "on port " in line and "successfully" in line:
                    return int(line.rsplit("on port ", 1)[1].rstrip("."))
            if self.driver.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError(f"chromedriver did not start: {log.read_text()}")

    def _send(self, method, path, body=None):
        data = None if method in ("GET", "DELETE") else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.root + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=100) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def open(self, file):
        """Loads a file from disk; the page's scripts have run when this returns."""
        self._send("POST", self.session + "/url", {"url": Path(file).resolve().as_uri()})

    def run(self, script, *arguments):
        """The result of a function body in the page."""
        return self._send("POST", self.session + "/execute/sync", {"script": script, "args": list(arguments)})

    def run_async(self, script, *arguments):
        """The same; the script calls its last argument with the result."""
        return self._send("POST", self.session + "/execute/async", {"script": script, "args": list(arguments)})

    def actions(self, *sources):
        self._send("POST", self.session + "/actions", {"actions": list(sources)})

    def move(self, x, y, click=False):
        """The mouse to a place in the window."""
        moves = [{"type": "pointerMove", "duration": 0, "x": round(x), "y": round(y)}]
        if click:
            moves += [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self.actions({"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": moves})

    def drag(self, x, y, right, kind="mouse"):
        """The mouse, or a finger (`kind`: "touch"), moves to the right while it is down."""
        self.actions({"type": "pointer", "id": kind, "parameters": {"pointerType": kind}, "actions": [
            {"type": "pointerMove", "duration": 0, "x": round(x), "y": round(y)}, {"type": "pointerDown", "button": 0},
            {"type": "pointerMove", "duration": 50, "x": round(x + right), "y": round(y)}, {"type": "pointerUp", "button": 0}]})

    def tap(self, x, y):
        """A finger that touches a place and is lifted."""
        self.actions({"type": "pointer", "id": "finger", "parameters": {"pointerType": "touch"}, "actions": [
            {"type": "pointerMove", "duration": 0, "x": round(x), "y": round(y)}, {"type": "pointerDown", "button": 0},
            {"type": "pointerUp", "button": 0}]})

    def pinch(self, x, y, start, end):
        """Puts two fingers next to a place, first `start` and then `end` pixels from it."""
        self.actions(*({"type": "pointer", "id": f"finger{side}", "parameters": {"pointerType": "touch"}, "actions": [
            {"type": "pointerMove", "duration": 0, "x": round(x + side * start), "y": round(y)}, {"type": "pointerDown", "button": 0},
            {"type": "pointerMove", "duration": 50, "x": round(x + side * end), "y": round(y)}, {"type": "pointerUp", "button": 0}]}
            for side in (-1, 1)))

    def wheel(self, x, y, down):
        self.actions({"type": "wheel", "id": "wheel", "actions": [
            {"type": "scroll", "duration": 0, "x": round(x), "y": round(y), "deltaX": 0, "deltaY": down}]})

    def keys(self, text):
        self.actions({"type": "key", "id": "keys", "actions": [
            {"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]})

    def command(self, name, **parameters):
        """A command of Chromium's DevTools."""
        return self._send("POST", self.session + "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def screenshot(self, file, whole=False):
        shot = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        Path(file).write_bytes(base64.b64decode(shot["data"]))

    def messages(self):
        """Returns what the page wrote to the console, and errors of loading."""
        return [entry["message"] for entry in self._send("POST", self.session + "/se/log", {"type": "browser"})]

    def requests(self, page):
        """Addresses that the page from this address has asked for, its own among them. The browser's first page asks too."""
        events = [json.loads(entry["message"])["message"] for entry in self._send("POST", self.session + "/se/log", {"type": "performance"})]
        sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [request["request"]["url"] for request in sent if request["documentURL"] == page]
