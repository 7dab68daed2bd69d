// Search where the site is opened as a file: browsers start no worker from one, so that a hidden frame runs its script.
// The theme looks for the name IFrameWorker.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(script) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.ready = new Promise((resolve) => { frame.onload = () => resolve(frame.contentWindow); });
      window.workerAnswers ??= new Map();
      const name = `worker${window.workerAnswers.size}`;
      window.workerAnswers.set(name, (data) => this.dispatchEvent(new MessageEvent("message", { data })));
      const answer = `self.postMessage = (data) => parent.workerAnswers.get("${name}")(data);`;
      frame.srcdoc = `<script>${answer}</` + `script><script src="${new URL(script, location)}"></` + "script>";
      document.documentElement.append(frame);
    }
    postMessage(data) {
      this.ready.then((frame) => frame.dispatchEvent(new frame.MessageEvent("message", { data })));
    }
    terminate() {}
  };
  window.Worker = window.IFrameWorker;
}
