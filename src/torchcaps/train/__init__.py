"""From a recipe, or from arrays, to a trained model."""
