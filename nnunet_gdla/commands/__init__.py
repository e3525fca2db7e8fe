"""The subcommands of `nnunet-gdla`: one module each, with `run(args) -> int`, imported when chosen."""
