// Answers requests about shapes: boats and houses of parts that are placed on the page.

import { listen } from "./listen.js";
import { shapes } from "./shapes.js";

listen({ "api/shapes": shapes });
