// Browsers start no workers from files. When the site is read without a server, the search runs in a frame instead, which
// has the interface of a worker.
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    this.frame.title = "search";
    document.body.appendChild(this.frame);
    const inside = this.frame.contentWindow;
    inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    inside.importScripts = async (...urls) => {
      for (const each of urls) await this.load(each);
    };
    this.ready = this.load(url);
  }

  load(url) {
    return new Promise((resolve, reject) => {
      const script = this.frame.contentDocument.createElement("script");
      script.onload = resolve;
      script.onerror = () => reject(new Error(`cannot load ${url}`));
      script.src = url;
      this.frame.contentDocument.body.appendChild(script);
    });
  }

  async postMessage(data) {
    await this.ready;
    const { MessageEvent: Message } = this.frame.contentWindow;
    this.frame.contentWindow.dispatchEvent(new Message("message", { data }));
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
