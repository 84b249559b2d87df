"""A sweep: recipe, plan, folder, schedule, executors."""
