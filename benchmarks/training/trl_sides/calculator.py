"""The agent's tool as TRL takes tools: a function whose docstring describes its arguments.

``examples/calculator/agent.py`` has it as a tool of LangChain, which TRL's environment lacks; a test holds both equal.
"""

import ast
import operator

_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def calculator(expression: str) -> str:
    """Work out an arithmetic expression.

    Args:
        expression: numbers and + - * / ( )
    """
    try:
        if len(expression) > 80:
            return "error"
        value = _evaluate(ast.parse(expression, mode="eval").body)
        return str(int(value)) if value == int(value) else str(value)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError):
        return "error"


def _evaluate(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluate(left), _evaluate(right))
    raise ValueError("only numbers and + - * / ( )")
