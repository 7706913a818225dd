"""A real OpenEnv server, run in the interpreter that has openenv-core: count to a number that the seed gives."""

import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_app  # pyright: ignore


class Say(Action):
    word: str


class Told(Observation):
    text: str


class Counting(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.goal = self.count = 0

    def reset(self, seed: int = 0, **more: object) -> Told:
        self.goal, self.count = seed % 3 + 1, 0
        return Told(text=f"count to {self.goal}", done=False, reward=None)

    def step(self, action: Say, **more: object) -> Told:
        if action.word == "break":
            raise RuntimeError("broken")
        self.count += 1
        right = action.word == str(self.count)
        done = not right or self.count == self.goal
        return Told(text="right" if right else "wrong", done=done, reward=1.0 if right and done else 0.0)

    @property
    def state(self) -> State:
        return State(episode_id="e", step_count=self.count)


if __name__ == "__main__":
    app = create_app(Counting, Say, Told, env_name="counting", max_concurrent_envs=8)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
