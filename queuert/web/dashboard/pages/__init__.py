"""The pages, one subject a module: what each reads, and the changes that it asks for."""
