// SPDX-License-Identifier: BSD-3-Clause
// Lets the search of the theme run in pages that are opened as files, where browsers allow no
// workers. The worker's script runs in a hidden frame, and messages pass as to a worker.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc =
        "<script>postMessage = data => parent.dispatchEvent(" +
        "new MessageEvent('message', { data, source: window }));" +
        "importScripts = (...urls) => urls.reduce((last, src) => last.then(() => " +
        "new Promise(loaded => document.head.append(Object.assign(" +
        "document.createElement('script'), { src, onload: loaded })))), Promise.resolve())" +
        `</script><script src="${url}"></script>`;
      this.frame.addEventListener("load", () => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach(data => this.postMessage(data));
      });
      addEventListener("message", event => {
        if (event.source !== this.frame.contentWindow) return;
        this.dispatchEvent(new MessageEvent("message", { data: event.data }));
        if (this.onmessage) this.onmessage(new MessageEvent("message", { data: event.data }));
      });
      document.body.append(this.frame);
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else
        this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
