"""The subcommands of `nnunet-gdla-mil`, one module each; a module is imported when its command is chosen."""
