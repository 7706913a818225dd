"""The whole loop measured."""
