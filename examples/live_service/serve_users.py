"""A service in use: people ask, it answers, they click thumbs, and the daemon trains on them; nobody starts a run.

    lightning-trainer serve --config examples/live_service/lightning.toml
    python examples/live_service/serve_users.py --minutes 12

The daemon trains whenever enough answered questions have their feedback, and serves the new version by itself. At the
end this prints what share of the answers was liked, by quarters of the time and for questions that the traffic left
out, and which users the daemon believes least. The program knows what users like; the daemon sees only thumbs, some of
them wrong, some from attackers, and the shop's own checks of a tenth of the answers.
"""

import argparse
import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import lightning_instrumentation as lt
import openai
from users import HELD_OUT, QUESTIONS, User, is_liked, users

CONFIG = Path(__file__).with_name("lightning.toml")
VOICES = 3
"""How many users give feedback on an answer."""
CHECKED = 0.1
"""Share of the answers that the shop checks itself."""
INSTRUCTION = "You answer customers of a shop for outdoor equipment."


@lt.agent("shop")
def answer(client: openai.OpenAI, question: str) -> str:
    messages = [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": question}]
    made = client.chat.completions.create(
        model="shop",
        messages=messages,  # pyright: ignore[reportArgumentType]
        max_tokens=48,
        temperature=1.0,
    )
    return made.choices[0].message.content or ""


@dataclass
class Record:
    """Which answers were liked, and when."""

    began: float = field(default_factory=time.monotonic)
    liked: list[tuple[float, bool]] = field(default_factory=list)
    failed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, liked: bool) -> None:
        with self.lock:
            self.liked.append((time.monotonic() - self.began, liked))

    def share(self, first_s: float, last_s: float) -> tuple[int, float | None]:
        """Return how many answers there were in that time, and the share that was liked."""
        seen = [liked for when, liked in self.liked if first_s <= when < last_s]
        return len(seen), sum(seen) / len(seen) if seen else None


def visit(client: openai.OpenAI, everybody: list[User], record: Record, chance: random.Random) -> None:
    """Ask one question, and record what some users say of the answer."""
    question = chance.choice(QUESTIONS)
    try:
        with lt.rollout(question, input=question):
            text = answer(client, question)
            for user in chance.sample(everybody, VOICES):
                lt.feedback(source=user.name, thumb=user.thumb(text, chance))
            if chance.random() < CHECKED:
                lt.reward(float(is_liked(text)), name="checked")
    except openai.OpenAIError as error:
        with record.lock:
            record.failed += 1
        print(f"a question was not answered: {error}", flush=True)
        time.sleep(1)
        return
    record.add(is_liked(text))


def ask_held_out(client: openai.OpenAI, times: int, at_once: int) -> None:
    """Ask the questions that the traffic left out, each this many times, without training on them."""

    def ask(question: str) -> bool | None:
        try:
            with lt.rollout(question, input=question, mode="evaluate"):
                return is_liked(answer(client, question))
        except openai.OpenAIError:
            return None

    with ThreadPoolExecutor(at_once) as pool:
        answered = [liked for liked in pool.map(ask, HELD_OUT * times) if liked is not None]
    if answered:
        print(f"questions not asked before: {sum(answered) / len(answered):.1%} of {len(answered)} answers liked")


def report(record: Record, seconds: float) -> None:
    for quarter in range(4):
        count, share = record.share(quarter * seconds / 4, (quarter + 1) * seconds / 4)
        said = "none answered" if share is None else f"{share:.0%} of {count} answers liked"
        print(f"quarter {quarter + 1} of the time: {said}")
    told = json.loads(_command("feedback", "--json"))
    last = told["sources"][:6]
    print("believed least: " + ", ".join(f"{one['source']} ({one['weight']:.2f})" for one in last))
    versions = json.loads(_command("versions", "--json"))
    print(f"versions: {len(versions)}, served now: v{max(one['version'] for one in versions)}")


def _command(*arguments: str) -> str:
    command = [sys.executable, "-m", "lightning_trainer", *arguments, "--config", str(CONFIG)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr.strip())
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--at-once", type=int, default=12, help="people who are in the shop")
    parser.add_argument("--users", type=int, default=40)
    parser.add_argument("--attackers", type=float, default=0.1, help="share of the users; 0: nobody attacks")
    parser.add_argument(
        "--held-out", type=int, default=10, help="times that each held-out question is asked at the end"
    )
    parser.add_argument("--think-s", type=float, default=1.0, help="between two questions of one person")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--endpoint", default="http://127.0.0.1:8321")
    options = parser.parse_args()
    lt.init(options.endpoint)
    client = openai.OpenAI(base_url=f"{options.endpoint}/v1", api_key="unused", timeout=300, max_retries=0)
    everybody, seconds = users(options.users, attackers=options.attackers), 60 * options.minutes
    try:
        answer(client, QUESTIONS[0])  # the engine may still be starting
    except openai.OpenAIError as error:
        sys.exit(
            f"error: {options.endpoint} did not answer for the model 'shop' ({error}); start its daemon with: "
            f"lightning-trainer serve --config {CONFIG}"
        )
    record = Record()
    over = threading.Event()

    def person(number: int) -> None:
        chance = random.Random(f"{options.seed}/{number}")
        while time.monotonic() - record.began < seconds and not over.is_set():
            visit(client, everybody, record, chance)
            over.wait(chance.random() * 2 * options.think_s)

    def every_minute() -> None:
        minute = 0
        while not over.is_set():
            over.wait(1)
            if time.monotonic() - record.began >= 60 * (minute + 1):
                count, share = record.share(60 * minute, 60 * (minute + 1))
                liked = "-" if share is None else f"{share:.0%}"
                minute += 1
                print(f"minute {minute}: {liked} of {count} answers liked", flush=True)

    threading.Thread(target=every_minute, daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt), ThreadPoolExecutor(options.at_once) as pool:
        try:
            list(pool.map(person, range(options.at_once)))
        finally:
            over.set()  # Ctrl-C ends the visits, and the report covers those made so far
    lasted = min(seconds, time.monotonic() - record.began)
    lt.flush(30)
    with contextlib.suppress(KeyboardInterrupt):  # the report does not need the held-out questions
        ask_held_out(client, options.held_out, options.at_once)
    report(record, lasted)


if __name__ == "__main__":
    main()
