"""The openai client, watched by another instrumentation too, whose spans have to be the same with and without ours."""
