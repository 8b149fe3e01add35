/* Pages opened from the disk may start no worker, and the search runs in one: there it runs in a
   frame. The name is the one by which the theme's offline plugin knows that nothing is to be fetched. */
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = (this.inside = frame.contentWindow);
      this.ready = new Promise((done) => {
        inside.postMessage = (data) => {
          const event = new MessageEvent("message", { data });
          this.dispatchEvent(event);
          this.onmessage?.(event);
        };
        inside.importScripts = (...urls) => urls.reduce((before, each) => before.then(() => load(each)), Promise.resolve());
        const load = (each) =>
          new Promise((loaded) => {
            const script = inside.document.createElement("script");
            script.src = each;
            script.onload = loaded;
            inside.document.body.append(script);
          });
        load(url).then(done);
      });
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {}
  };
