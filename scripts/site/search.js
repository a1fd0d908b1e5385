// SPDX-License-Identifier: BSD-3-Clause
// Searches the built site with the theme's own search, without a browser.
//
//     node scripts/site/search.js build/site [index.json] < queries
//
// Each line is a query. Prints a line of JSON for each: the addresses it finds, best first. Fails if a
// query fails. The index is that of the site, or the given one.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [site, index = path.join(site, "search/search_index.json")] = process.argv.slice(2);
const folder = path.join(site, "assets/javascripts/workers");
const worker = fs.readdirSync(folder).find(name => name.endsWith(".min.js"));
let answer, receive;
const scope = {
  URL,
  location: {},
  console: { ...console, warn: problem => { console.error(problem); process.exitCode = 1; } },
  addEventListener: (_, listener) => { receive = listener; },
  postMessage: message => { answer = message; },
};
scope.self = scope;
vm.runInNewContext(fs.readFileSync(path.join(folder, worker), "utf8"), scope);

(async () => {
  const { config, docs } = JSON.parse(fs.readFileSync(index, "utf8"));
  await receive({ data: { type: 0, data: { config, docs, options: {} } } });
  for (const query of fs.readFileSync(0, "utf8").trim().split("\n")) {
    await receive({ data: { type: 2, data: query } });
    console.log(JSON.stringify(answer.data.items.flat().map(page => page.location)));
  }
})();
