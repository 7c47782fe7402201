"""What a run says as a whole: portraits of heads, rollout, and pieces of HTML for notebooks."""
