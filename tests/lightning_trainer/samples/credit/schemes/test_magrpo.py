from lightning_trainer.samples.credit.schemes.magrpo import JointReturn


def test_the_joint_return_by_hand(team, values):
    """Turn 1 earned 1 (solver) + 2 (critic), turn 2 earned 4 (solver), the attempt 8: R_2 = 12, R_1 = 3 + 12 = 15."""
    attempt = team("a1", 8.0, solver=[("s1", 1.0, None), ("s2", 4.0, "s1")], critic=[("c1", 2.0, None)])
    assert values(JointReturn(), attempt) == {"s1": 15.0, "s2": 12.0, "c1": 15.0}


def test_an_agent_is_compared_with_itself_at_the_same_turn(team):
    attempt = team("a1", 1.0, solver=[("s1", None, None), ("s2", None, "s1"), ("s3", None, "s1")])
    (credits_T,) = JointReturn()(attempt)
    assert [credit.peers for credit in credits_T] == ["turn 0", "turn 1", "turn 1"]  # two branches, one turn


def test_the_papers_advantage_is_the_return_less_the_groups_mean(team, values):
    """R = 1, 0 and 0.5 over three attempts: A = 0.5, -0.5 and 0, for both agents (arXiv 2508.04652, Algorithm 1)."""
    attempts = [
        trajectory
        for name, reward in (("a1", 1.0), ("a2", 0.0), ("a3", 0.5))
        for trajectory in team(name, reward, solver=[(f"s-{name}", None, None)], critic=[(f"c-{name}", None, None)])
    ]
    credits = values(JointReturn(), attempts)
    for agent in "sc":
        returns = [credits[f"{agent}-{name}"] or 0.0 for name in ("a1", "a2", "a3")]
        assert [value - sum(returns) / 3 for value in returns] == [0.5, -0.5, 0.0]


def test_a_reward_that_is_missing_is_missing_for_the_team_up_to_there(team, values):
    attempts = team("a1", 1.0, solver=[("s1", 1.0, None), ("s2", 1.0, "s1")], critic=[("c1", 1.0, None)])
    attempts += team("a2", 1.0, solver=[("s3", None, None), ("s4", 1.0, "s3")], critic=[("c2", 1.0, None)])
    assert values(JointReturn(), attempts) == {"s1": 4.0, "s2": 2.0, "c1": 4.0, "s3": None, "s4": 2.0, "c2": None}
