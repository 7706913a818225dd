#!/bin/sh
# One rollout with nothing but curl: a base URL of its own says whose calls these are.
#   DAEMON=http://127.0.0.1:8321 POLICY=support sh curl.sh
set -eu
TOKEN=${OPENAI_API_KEY:-$(lightning-trainer token)}
DAEMON=${DAEMON:-http://127.0.0.1:8321}
ROLLOUT=curl-$(date +%s)-$$
export OPENAI_BASE_URL="$DAEMON/rollouts/$ROLLOUT/agents/support/v1" # all that an agent has to be given

reply=$(curl --silent --show-error --fail-with-body --oauth2-bearer "$TOKEN" "$OPENAI_BASE_URL/chat/completions" --json '{
    "model": "'"${POLICY:-support}"'",
    "max_tokens": 32,
    "messages": [{"role": "user", "content": "Where is parcel 4711? Name the number."}]
}')
echo "$reply"

case $reply in *4711*) reward=1 ;; *) reward=0 ;; esac

# Attempts with one task id are compared with each other. Training may begin as soon as they have ended.
curl --silent --show-error --fail-with-body --oauth2-bearer "$TOKEN" "$DAEMON/rollouts/$ROLLOUT/end" \
    --json '{"reward": '"$reward"', "task_id": "parcel-4711"}'
echo
