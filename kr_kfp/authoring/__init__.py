"""The author's side: needs kfp, runs on the user's machine."""
