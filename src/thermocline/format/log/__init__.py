"""What a commit log says: actions, commits, the state they fold to, and the rules of conflict."""
