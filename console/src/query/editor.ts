// The SQL editor. It is in a shadow root, where its styles are separate style sheets, so that the
// page's policy, which forbids inline styles, can stay.
import {
  type CompletionContext,
  type CompletionResult,
  autocompletion,
  closeBrackets,
  closeBracketsKeymap,
  completionKeymap,
} from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { SQLDialect, type SQLNamespace, sql } from "@codemirror/lang-sql";
import { HighlightStyle, bracketMatching, syntaxHighlighting } from "@codemirror/language";
import { lintKeymap, setDiagnostics } from "@codemirror/lint";
import { Compartment, EditorState, Prec } from "@codemirror/state";
import {
  EditorView,
  drawSelection,
  keymap,
  lineNumbers,
  placeholder,
} from "@codemirror/view";
import { tags } from "@lezer/highlight";

export interface Words {
  tables: { name: string; columns: string[] }[];
  functions: string[];
  table_functions: string[];
}

export interface Editor {
  text(): string;
  put(text: string): void;
  words(words: Words): void;
  /** Underline an error in the text and go there; without a place, remove the underline. */
  mark(place: number | null, message: string): void;
  focus(): void;
  destroy(): void;
}

interface Wishes {
  text: string;
  changed: (text: string) => void;
  run: () => void;
}

// The words of a SELECT. A longer list would treat columns such as `close` or `name` as keywords.
const dialect = SQLDialect.define({
  doubleDollarQuotedStrings: true,
  operatorChars: "+-*/<>=~!@#%^&|",
  keywords:
    "all and any as asc between by case cast cross current desc distinct else end escape except " +
    "exclude exists filter first following for from full group having ilike in inner intersect " +
    "interval into is join last lateral left like limit natural not null nulls of offset on or " +
    "order outer over partition preceding qualify range recursive right row rows sample select " +
    "semi set similar some table then timestamp to unbounded union unnest using values version " +
    "when where window with within",
  types:
    "bigint binary bit blob boolean char date decimal double float hugeint int integer json map " +
    "numeric real smallint struct text time timestamptz tinyint uuid varchar",
  builtin: "true false",
});

const colours = HighlightStyle.define([
  { tag: [tags.keyword, tags.operatorKeyword], color: "var(--code-word)", fontWeight: "600" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--code-text)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--code-number)" },
  { tag: [tags.lineComment, tags.blockComment], color: "var(--faint)", fontStyle: "italic" },
  { tag: [tags.typeName, tags.standard(tags.name)], color: "var(--code-type)" },
]);

const look = EditorView.theme({
  "&": { height: "100%", color: "var(--ink)", backgroundColor: "transparent", fontSize: "13.5px" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.6" },
  ".cm-content": { padding: "10px 0", caretColor: "var(--ink)" },
  ".cm-gutters": { backgroundColor: "transparent", border: "none", color: "var(--faint)" },
  ".cm-lineNumbers .cm-gutterElement": { padding: "0 10px 0 14px" },
  ".cm-cursor": { borderLeftColor: "var(--accent)", borderLeftWidth: "2px" },
  ".cm-placeholder": { color: "var(--faint)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground":
    { backgroundColor: "var(--picked)" },
  ".cm-matchingBracket": { backgroundColor: "var(--picked)", outline: "1px solid var(--line)" },
  ".cm-tooltip": {
    backgroundColor: "var(--raised)",
    color: "var(--ink)",
    border: "1px solid var(--line)",
    borderRadius: "6px",
    boxShadow: "var(--shadow)",
    overflow: "hidden",
  },
  ".cm-tooltip.cm-tooltip-autocomplete > ul": { fontFamily: "var(--mono)", maxHeight: "15em" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": {
    backgroundColor: "var(--accent)",
    color: "var(--on-accent)",
  },
  ".cm-completionDetail": { fontStyle: "normal", opacity: "0.75" },
  ".cm-diagnostic": { padding: "6px 10px" },
  // The library draws its line with an image inside the style, which the page's policy forbids.
  ".cm-lintRange-error": {
    backgroundImage: "none",
    textDecoration: "underline wavy var(--hot)",
    textUnderlineOffset: "3px",
  },
});

/**
 * Replaces a selection by typed text. A browser would keep the style of the old text as an
 * attribute, which violates the page's policy and logs an error.
 */
const overSelection = EditorView.domEventHandlers({
  beforeinput(event, view) {
    const { from, to, empty } = view.state.selection.main;
    const text = event.data;
    if (event.inputType !== "insertText" || !text || empty || view.composing) return false;
    event.preventDefault();
    const insert = () =>
      view.state.update({ ...view.state.replaceSelection(text), userEvent: "input.type" });
    const handlers = view.state.facet(EditorView.inputHandler);
    if (!handlers.some((handle) => handle(view, from, to, text, insert))) view.dispatch(insert());
    return true;
  },
});

export function mounted(host: HTMLElement, wishes: Wishes): Editor {
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  const language = new Compartment();
  const runs = () => (wishes.run(), true);
  const state = EditorState.create({
    doc: wishes.text,
    extensions: [
      lineNumbers(),
      history(),
      drawSelection(),
      bracketMatching(),
      closeBrackets(),
      autocompletion({ icons: false }),
      EditorView.lineWrapping,
      EditorView.contentAttributes.of({ "aria-label": "SQL", spellcheck: "false" }),
      placeholder("select …"),
      syntaxHighlighting(colours),
      look,
      overSelection,
      language.of(spoken({ tables: [], functions: [], table_functions: [] })),
      Prec.highest(keymap.of([{ key: "Mod-Enter", run: runs }])),
      keymap.of([
        ...closeBracketsKeymap,
        ...defaultKeymap,
        ...historyKeymap,
        ...completionKeymap,
        ...lintKeymap,
      ]),
      EditorView.updateListener.of((update) => {
        if (update.docChanged) wishes.changed(update.state.doc.toString());
      }),
    ],
  });
  const view = new EditorView({ state, parent: root, root });
  return {
    text: () => view.state.doc.toString(),
    put(text) {
      if (text === view.state.doc.toString()) return;
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } });
    },
    words: (words) => view.dispatch({ effects: language.reconfigure(spoken(words)) }),
    mark: (place, message) => marked(view, place, message),
    focus: () => view.focus(),
    destroy: () => view.destroy(),
  };
}

function spoken(words: Words) {
  const schema: SQLNamespace = Object.fromEntries(
    words.tables.map((table) => [table.name, table.columns]),
  );
  const spoken = sql({ dialect, schema, upperCaseKeywords: false });
  return [spoken, spoken.language.data.of({ autocomplete: completing(words) })];
}

/** Complete functions anywhere, and columns also where no table is named before them. */
function completing(words: Words) {
  const columns = new Map<string, string>();
  for (const table of words.tables) {
    for (const name of table.columns) {
      columns.set(name, columns.has(name) ? "several tables" : table.name);
    }
  }
  const options = [
    ...[...columns].map(([label, detail]) => ({ label, detail, type: "property", boost: 1 })),
    ...words.functions.filter((name) => /^\w+$/.test(name)).map((name) => called(name, "")),
    ...words.table_functions.map((name) => called(name, "table")),
  ];
  return (context: CompletionContext): CompletionResult | null => {
    const word = context.matchBefore(/\w+/);
    if (!word || context.matchBefore(/\.\w*/)) return null;
    return { from: word.from, options, validFor: /^\w*$/ };
  };
}

function called(name: string, detail: string) {
  return { label: name, apply: `${name}(`, detail: `${detail}()`, type: "function", boost: -1 };
}

function marked(view: EditorView, place: number | null, message: string): void {
  const length = view.state.doc.length;
  if (place === null) {
    view.dispatch(setDiagnostics(view.state, []));
    return;
  }
  const from = Math.min(place, length);
  const word = view.state.wordAt(from);
  const to = word && word.from === from ? word.to : Math.min(from + 1, length);
  const start = from === to ? Math.max(0, from - 1) : from;
  view.dispatch(
    setDiagnostics(view.state, [{ from: start, to, severity: "error", message }]),
    { selection: { anchor: from }, scrollIntoView: true },
  );
}
