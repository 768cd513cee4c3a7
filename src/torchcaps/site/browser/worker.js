// Answers requests about the models.

import { listen } from "./listen.js";
import { lattice, predict, reconstruct } from "./predict.js";
import { routing } from "./routing.js";
import { transform } from "./transform.js";

listen({ "api/predict": predict, "api/reconstruct": reconstruct, "api/lattice": lattice, "api/routing": routing, "api/transform": transform });
