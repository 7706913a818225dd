"""A small shop as an MCP server: customers, products and orders in SQLite, read by four tools.

    python examples/mcp/server.py

The database is made in memory, the same every time; no tool changes it.
"""

import random
import sqlite3

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

CITIES = ("Lima", "Oslo", "Cairo", "Hanoi", "Turin", "Perth", "Quito", "Accra")
FIRST = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gia", "Hugo", "Ida", "Jon", "Kira", "Leo")
LAST = ("Reed", "Stone", "Marsh", "Vale", "Frost", "Lake")
GOODS = ("lamp", "chair", "kettle", "clock", "rug", "mirror", "shelf", "vase", "stool", "basket")
READS = ToolAnnotations(read_only_hint=True)

server = MCPServer("shop")


def database() -> sqlite3.Connection:
    rows = random.Random(20_261_123)
    db = sqlite3.connect(":memory:", check_same_thread=False)
    db.row_factory = sqlite3.Row
    db.executescript("""
        create table customers (customer_id integer primary key, name text, city text, since integer);
        create table products (product_id text primary key, title text, price integer, stock integer);
        create table orders (order_id integer primary key, customer_id integer, product_id text, pieces integer);
    """)
    names = rows.sample([f"{first} {last}" for first in FIRST for last in LAST], 24)
    for number, name in enumerate(names):
        customer = (101 + number, name, rows.choice(CITIES), rows.randint(2005, 2025))
        db.execute("insert into customers values (?, ?, ?, ?)", customer)
    for number, title in enumerate(GOODS):
        product = (f"P-{31 + 7 * number}", title, rows.randint(4, 300), rows.randint(0, 90))
        db.execute("insert into products values (?, ?, ?, ?)", product)
    for number in range(60):
        bought = f"P-{31 + 7 * rows.randrange(len(GOODS))}"
        order = (5001 + number, 101 + rows.randrange(24), bought, rows.randint(1, 9))
        db.execute("insert into orders values (?, ?, ?, ?)", order)
    return db


DATABASE = database()


def _rows(query: str, *arguments: object) -> list[dict]:
    return [dict(row) for row in DATABASE.execute(query, arguments)]


@server.tool(annotations=READS)
def list_customers() -> list[dict]:
    """List the customers with their cities."""
    return _rows("select customer_id, name, city from customers order by customer_id")


@server.tool(annotations=READS)
def get_customer(customer_id: int) -> dict:
    """Look up a customer."""
    return _one("customer", customer_id, _rows("select * from customers where customer_id = ?", customer_id))


@server.tool(annotations=READS)
def list_orders(customer_id: int) -> list[dict]:
    """List the orders of a customer."""
    return _rows("select order_id, product_id, pieces from orders where customer_id = ? order by order_id", customer_id)


@server.tool(annotations=READS)
def get_product(product_id: str) -> dict:
    """Look up a product."""
    return _one("product", product_id, _rows("select * from products where product_id = ?", product_id))


def _one(kind: str, name: object, rows: list[dict]) -> dict:
    if not rows:
        raise ValueError(f"there is no {kind} {name}")
    return rows[0]


if __name__ == "__main__":
    server.run()
