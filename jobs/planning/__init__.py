"""What will a build do and need? Recipes, defaults, costs and the plan: decided before anything runs."""
