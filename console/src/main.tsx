// The entry point: loads the styles and renders the frame.
import { render } from "preact";
import "./style/base.css";
import "./style/frame.css";
import "./style/piece.css";
import "./style/control.css";
import "./style/query.css";
import "./style/screen.css";
import "./style/telemetry.css";
import { Frame } from "./frame";

const place = document.getElementById("app");
if (place) render(<Frame />, place);
