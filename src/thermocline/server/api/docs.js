"use strict";

function made(tag, text, name) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (name) element.className = name;
  return element;
}

function resolved(spec, schema) {
  const name = schema && schema.$ref && schema.$ref.split("/").pop();
  return name ? spec.components.schemas[name] : schema;
}

function parameters(list) {
  const table = made("table");
  for (const one of list) {
    const row = made("tr");
    row.append(made("td", one.name), made("td", one.in));
    row.append(made("td", one.required ? "required" : ""));
    row.append(made("td", one.description || one.schema.description || ""));
    table.append(row);
  }
  return table;
}

function content(spec, title, found) {
  const box = made("div");
  for (const [media, one] of Object.entries(found || {})) {
    box.append(made("p", title + " " + media));
    const schema = resolved(spec, one.schema);
    if (schema) box.append(made("pre", JSON.stringify(schema, null, 2)));
  }
  return box;
}

function shown(spec, method, path, operation) {
  const box = made("details");
  const head = made("summary");
  head.append(made("span", method.toUpperCase(), "method"), made("code", path));
  head.append(made("span", operation.summary));
  head.append(made("span", operation["x-scope"] || "open", "scope"));
  box.append(head);
  if (operation.description) box.append(made("p", operation.description));
  if (operation.parameters) box.append(parameters(operation.parameters));
  if (operation.requestBody) box.append(content(spec, "takes", operation.requestBody.content));
  for (const [status, answer] of Object.entries(operation.responses)) {
    box.append(made("p", status + ": " + answer.description));
    if (status < "300") box.append(content(spec, "gives", answer.content));
  }
  box.dataset.words = (method + " " + path + " " + operation.summary).toLowerCase();
  return box;
}

async function start() {
  const about = document.getElementById("about");
  try {
    const answer = await fetch("v1/openapi.json");
    const spec = await answer.json();
    about.textContent = spec.info.title + " " + spec.info.version;
    const main = document.getElementById("routes");
    for (const [path, methods] of Object.entries(spec.paths)) {
      for (const [method, operation] of Object.entries(methods)) {
        main.append(shown(spec, method, path, operation));
      }
    }
    document.getElementById("filter").addEventListener("input", (event) => {
      const word = event.target.value.toLowerCase();
      for (const box of main.children) box.hidden = !box.dataset.words.includes(word);
    });
  } catch (error) {
    about.textContent = "The document cannot be read: " + error;
  }
}

start();
