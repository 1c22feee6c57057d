"""doit tasks, commands and reporter: the only room that knows doit."""
