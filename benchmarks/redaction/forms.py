"""Forms of secrets, made on demand: nothing in this file is a key, and no scanner takes it for one.

A form is a text with places such as ``{w*36}``: that many characters of an alphabet, drawn at random. The part between
``«`` and ``»`` is the secret itself, of which nothing may stay. Sources: the issuers' documentation.
"""

import base64
import json
import random
import re
import string
from collections.abc import Iterator
from dataclasses import dataclass

_ALPHABETS = {
    "a": string.ascii_lowercase,
    "A": string.ascii_uppercase,
    "n": string.digits,
    "x": "0123456789abcdef",
    "X": "0123456789ABCDEF",
    "l": string.ascii_lowercase + string.digits,
    "U": string.ascii_uppercase + string.digits,
    "3": string.ascii_uppercase + "234567",
    "w": string.ascii_letters + string.digits,
    "u": string.ascii_letters + string.digits + "_-",
    "b": string.ascii_letters + string.digits + "+/",
    "p": string.ascii_letters + string.digits + "!%^*~",
}
_PLACE = re.compile(r"\{(\w)\*(\d+)\}")


@dataclass(frozen=True, slots=True)
class Secret:
    form: str
    text: str
    """As it might be said, logged or configured."""
    secret: str
    """The part of the text that must go."""


# One a line: name, then how it is written.
_PREFIXED = """
openai                  OPENAI_API_KEY=«sk-{w*20}T3Blbk{w}FJ{w*20}»
openai-project          use «sk-proj-{u*74}T3Blbk{w}FJ{u*74}» from now on
openai-service          key: «sk-svcacct-{u*74}T3Blbk{w}FJ{u*74}»
anthropic               export ANTHROPIC_API_KEY=«sk-ant-api03-{u*93}AA»
anthropic-admin         «sk-ant-admin01-{u*93}AA»
openrouter              "«sk-or-v1-{x*64}»"
deepseek                DEEPSEEK_API_KEY=«sk-{x*32}»
groq                    the key is «gsk_{w*52}».
xai                     XAI_API_KEY: «xai-{w*80}»
perplexity              «pplx-{w*48}»
hugging-face            login with «hf_{a*34}»
hugging-face-org        «api_org_{a*34}»
replicate               REPLICATE_API_TOKEN=«r8_{w*37}»
fireworks               FIREWORKS_API_KEY=«fw_{w*24}»
nvidia                  NVIDIA_API_KEY=«nvapi-{u*64}»
langsmith               LANGSMITH_API_KEY="«lsv2_pt_{x*32}_{x*10}»"
langfuse                LANGFUSE_SECRET_KEY=«sk-lf-{x*8}-{x*4}-4{x*3}-a{x*3}-{x*12}»
tavily                  TAVILY_API_KEY=«tvly-dev-{w*32}»
cerebras                CEREBRAS_API_KEY=«csk-{l*48}»
google-api              key=«AIza{u*35}»
google-oauth-secret     "client_secret": "«GOCSPX-{u*28}»"
google-access           Authorization: Bearer «ya29.{u*120}»
aws-access-id           aws_access_key_id = «AKIA{3*16}»
aws-session-id          AccessKeyId: «ASIA{3*16}»
aws-secret              aws_secret_access_key = «{b*40}»
aws-secret-env          AWS_SECRET_ACCESS_KEY=«{b*40}»
aws-secret-json         "SecretAccessKey": "«{b*40}»"
aws-session-token       AWS_SESSION_TOKEN=«FwoGZXIvYXdzE{b*280}»
azure-storage           AccountName=shop;AccountKey=«{b*86}==»;EndpointSuffix=core.windows.net
azure-client-secret     AZURE_CLIENT_SECRET=«{w*3}8Q~{u*34}»
azure-sas               https://shop.blob.core.windows.net/c/f.txt?sv=2022-11-02&se=2030-01-01&sr=b&sp=r&sig=«{w*43}%3D»
azure-devops            AZURE_DEVOPS_PAT=«{l*52}»
azure-service-bus       Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=«{b*43}=»
github-classic          git clone with «ghp_{w*36}»
github-oauth            token «gho_{w*36}»
github-user             «ghu_{w*36}»
github-server           «ghs_{w*36}»
github-refresh          refresh_token=«ghr_{w*36}»
github-fine             GITHUB_TOKEN=«github_pat_{w*22}_{w*59}»
gitlab                  «glpat-{u*20}»
gitlab-runner           --registration-token «GR1348941{u*20}»
gitlab-runner-auth      token = "«glrt-{u*20}»"
gitlab-deploy           «gldt-{u*20}»
gitlab-trigger          «glptt-{x*40}»
bitbucket               BITBUCKET_APP_PASSWORD=«ATBB{w*32}»
slack-bot               SLACK_BOT_TOKEN=«xoxb-{n*12}-{n*12}-{w*24}»
slack-user              «xoxp-{n*12}-{n*12}-{n*12}-{x*32}»
slack-app               «xapp-1-A{U*10}-{n*13}-{x*64}»
slack-webhook           post it to https://hooks.slack.com/services/«T{U*8}/B{U*10}/{w*24}»
slack-config            «xoxe.xoxp-1-{w*160}»
discord-bot             DISCORD_TOKEN=«MTE{w*23}.G{w*5}.{u*38}»
discord-webhook         https://discord.com/api/webhooks/{n*18}/«{u*68}»
telegram                TELEGRAM_BOT_TOKEN=«{n*10}:AA{u*33}»
teams-webhook           https://shop.webhook.office.com/webhookb2/«{x*8}-{x*4}-4{x*3}-a{x*3}-{x*12}@{x*8}-{x*4}-4{x*3}-b{x*3}-{x*12}/IncomingWebhook/{x*32}/{x*8}-{x*4}-4{x*3}-a{x*3}-{x*12}»
stripe-live             STRIPE_KEY=«sk_live_{w*24}»
stripe-test             «sk_test_{w*24}»
stripe-restricted       «rk_live_{w*24}»
stripe-webhook          endpoint secret «whsec_{w*32}»
square                  SQUARE_ACCESS_TOKEN=«EAAA{w*60}»
square-secret           «sq0csp-{u*43}»
paypal-braintree        access_token$production${l*16}$«{x*32}»
shopify                 X-Shopify-Access-Token: «shpat_{x*32}»
shopify-secret          «shpss_{x*32}»
shopify-custom          «shpca_{x*32}»
sendgrid                SENDGRID_API_KEY=«SG.{u*22}.{u*43}»
mailgun                 MAILGUN_API_KEY=«key-{x*32}»
mailchimp               MAILCHIMP_API_KEY=«{x*32}-us12»
brevo                   «xkeysib-{x*64}-{w*16}»
resend                  RESEND_API_KEY=«re_{w*8}_{w*24}»
twilio-key              TWILIO_API_KEY=«SK{x*32}»
twilio-auth             TWILIO_AUTH_TOKEN=«{x*32}»
npm                     //npm.example.com/:_authToken=«npm_{w*36}»
pypi                    password = «pypi-AgEIcHlwaS5vcmc{u*150}»
rubygems                «rubygems_{x*48}»
crates-io               CARGO_REGISTRY_TOKEN=«cio{w*32}»
nuget                   NUGET_API_KEY=«oy2{l*43}»
docker-hub              docker login -p «dckr_pat_{u*27}»
digitalocean            DIGITALOCEAN_TOKEN=«dop_v1_{x*64}»
digitalocean-oauth      «doo_v1_{x*64}»
heroku                  HEROKU_API_KEY=«{x*8}-{x*4}-4{x*3}-a{x*3}-{x*12}»
heroku-new              «HRKU-AA{u*58}»
netlify                 NETLIFY_AUTH_TOKEN=«nfp_{w*36}»
vercel                  VERCEL_TOKEN=«{w*24}»
cloudflare              CLOUDFLARE_API_TOKEN=«{u*40}»
cloudflare-global       CLOUDFLARE_API_KEY=«{x*37}»
fastly                  FASTLY_API_TOKEN=«{u*32}»
fly-io                  FLY_API_TOKEN=«fo1_{u*43}»
supabase                «sbp_{x*40}»
neon                    NEON_API_KEY=«napi_{l*64}»
planetscale             «pscale_tkn_{u*43}»
planetscale-password    «pscale_pw_{u*43}»
databricks              DATABRICKS_TOKEN=«dapi{x*32}»
snowflake               SNOWFLAKE_PASSWORD=«{p*18}»
grafana                 «glsa_{w*32}_{x*8}»
grafana-cloud           «glc_eyJ{w*90}»
datadog-api             DD_API_KEY=«{x*32}»
datadog-app             DD_APP_KEY=«{x*40}»
new-relic               NEW_RELIC_API_KEY=«NRAK-{U*27}»
sentry                  SENTRY_AUTH_TOKEN=«sntrys_eyJpYXQiO{w*60}LCJyZWdpb25fdXJs{w*20}_{b*43}»
sentry-user             «sntryu_{x*64}»
honeycomb               HONEYCOMB_API_KEY=«{w*22}»
dynatrace               «dt0c01.{3*24}.{3*64}»
posthog                 «phx_{w*43}»
logfire                 LOGFIRE_TOKEN=«pylf_v1_us_{w*43}»
weights-and-biases      WANDB_API_KEY=«{x*40}»
pinecone                PINECONE_API_KEY=«pcsk_{w*5}_{w*63}»
cohere                  COHERE_API_KEY=«{w*40}»
mistral                 MISTRAL_API_KEY=«{w*32}»
together                TOGETHER_API_KEY=«{x*64}»
elevenlabs              ELEVENLABS_API_KEY=«sk_{x*48}»
assemblyai              ASSEMBLYAI_API_KEY=«{x*32}»
notion                  NOTION_TOKEN=«ntn_{n*11}{w*35}»
notion-old              NOTION_TOKEN=«secret_{w*43}»
linear                  «lin_api_{w*40}»
airtable                AIRTABLE_API_KEY=«pat{w*14}.{x*64}»
asana                   ASANA_TOKEN=«{n*16}:{x*32}»
atlassian               JIRA_API_TOKEN=«ATATT3xFfGF0{u*171}={X*8}»
figma                   «figd_{u*40}»
dropbox                 DROPBOX_TOKEN=«sl.{u*140}»
hubspot                 HUBSPOT_TOKEN=«pat-na1-{x*8}-{x*4}-4{x*3}-a{x*3}-{x*12}»
zendesk                 ZENDESK_API_TOKEN=«{w*40}»
okta                    OKTA_API_TOKEN=«00{u*40}»
auth0                   AUTH0_CLIENT_SECRET=«{u*64}»
vault                   VAULT_TOKEN=«hvs.{u*92}»
vault-batch             «hvb.{u*140}»
terraform-cloud         TFE_TOKEN=«{w*14}.atlasv1.{u*64}»
pulumi                  PULUMI_ACCESS_TOKEN=«pul-{x*40}»
doppler                 DOPPLER_TOKEN=«dp.pt.{w*43}»
onepassword             OP_SERVICE_ACCOUNT_TOKEN=«ops_eyJ{b*260}»
circleci                CIRCLE_TOKEN=«CCIPAT_{w*22}_{x*40}»
buildkite               «bkua_{x*40}»
sonarqube               SONAR_TOKEN=«squ_{x*40}»
postman                 «PMAK-{x*24}-{x*34}»
artifactory             X-JFrog-Art-Api: «AKCp{w*69}»
age                     «AGE-SECRET-KEY-1{A*58}»
mapbox                  MAPBOX_TOKEN=«sk.eyJ1Ijoi{w*60}.{u*22}»
algolia                 ALGOLIA_API_KEY=«{x*32}»
launchdarkly            LAUNCHDARKLY_SDK_KEY=«sdk-{x*8}-{x*4}-4{x*3}-a{x*3}-{x*12}»
facebook                FACEBOOK_ACCESS_TOKEN=«EAAC{w*160}»
twitter-bearer          TWITTER_BEARER_TOKEN=«AAAAAAAAAAAAAAAAAAAAA{w*60}%3D{w*30}»
linkedin                LINKEDIN_CLIENT_SECRET=«WPL_AP1.{w*16}.{w*8}»
firebase                FIREBASE_SERVER_KEY=«AAAA{w*7}:APA91b{u*134}»
"""

_WRITTEN = """
url-basic-auth          fetch https://deploy:«{p*16}»@git.example.com/repo.git
url-token-as-user       https://«{x*40}»:x-oauth-basic@git.example.com/repo.git
postgres-url            DATABASE_URL=postgresql://app:«{p*14}»@db.internal:5432/shop
postgres-async-url      postgresql+asyncpg://app:«{p*14}»@db.internal/shop
mysql-url               mysql://root:«{p*12}»@127.0.0.1:3306/shop
mongodb-url             mongodb+srv://app:«{w*16}»@cluster0.example.mongodb.net/shop
redis-url               redis://:«{w*24}»@cache.internal:6379/0
amqp-url                amqp://worker:«{p*14}»@mq.internal:5672/jobs
smtp-url                smtp://mailer:«{p*14}»@mail.internal:587
ftp-url                 ftp://backup:«{p*12}»@files.internal/dump
sentry-dsn              SENTRY_DSN=https://{x*32}:«{x*32}»@o4505.ingest.sentry.io/45
sqlserver               Server=db;Database=shop;User Id=sa;Password=«{p*14}»;Encrypt=yes
odbc                    DRIVER=x;SERVER=db;UID=sa;PWD=«{p*14}»;
jdbc                    jdbc:postgresql://db/shop?user=app&password=«{p*14}»
basic-header            Authorization: Basic «{basic}»
basic-header-json       {"Authorization": "Basic «{basic}»"}
bearer-header           Authorization: Bearer «{w*40}»
bearer-curl             curl -H 'Authorization: Bearer «{u*43}»' https://api.example.com
token-header            Authorization: token «{x*40}»
api-key-header          X-Api-Key: «{w*32}»
api-key-header-json     {"x-api-key": "«{w*32}»"}
private-token-header    PRIVATE-TOKEN: «{u*24}»
cookie-session          Cookie: sessionid=«{l*32}»; theme=dark
set-cookie              Set-Cookie: session=«{w*43}»; HttpOnly
curl-user               curl -u admin:«{p*14}» https://api.example.com/v1
password-flag           mysqldump --password=«{p*14}» shop
query-api-key           GET /v1/items?api_key=«{w*32}»&page=2
query-access-token      https://api.example.com/me?access_token=«{u*64}»
env-password            DB_PASSWORD=«{p*14}»
env-secret-key          SECRET_KEY=«{w*50}»
env-exported            export SERVICE_TOKEN="«{w*40}»"
python-password         password = "«{p*14}»"
python-api-key          api_key = '«{w*32}»'
python-keyword          connect(host="db", password="«{p*14}»", port=5432)
json-password           {"user": "app", "password": "«{p*14}»"}
json-secret             {"client_id": "shop", "client_secret": "«{w*40}»"}
json-access-token       {"access_token": "«{u*64}»", "expires_in": 3600}
json-refresh-token      {"refresh_token": "«{u*64}»", "token_type": "bearer"}
json-escaped            {"body": "{\\"api_key\\": \\"«{w*32}»\\"}"}
yaml-password           password: «{p*14}»
yaml-token              authToken: "«{w*40}»"
toml-token              token = "«{w*40}»"
xml-password            <password>«{p*14}»</password>
properties              spring.datasource.password=«{p*14}»
netrc                   machine git.example.com login deploy password «{p*14}»
jwt                     «{jwt}»
jwt-bearer              Authorization: Bearer «{jwt}»
pem-rsa                 «{pem:RSA PRIVATE KEY}»
pem-ec                  «{pem:EC PRIVATE KEY}»
pem-pkcs8               «{pem:PRIVATE KEY}»
pem-encrypted           «{pem:ENCRYPTED PRIVATE KEY}»
pem-openssh             «{pem:OPENSSH PRIVATE KEY}»
pem-pgp                 «{pem:PGP PRIVATE KEY BLOCK}»
pem-dsa                 «{pem:DSA PRIVATE KEY}»
pem-one-line            {"private_key": "«{pem-escaped}»"}
"""


def names() -> list[str]:
    """Return the name of every form."""
    return [line.split(maxsplit=1)[0] for line in _lines()]


def secrets(seed: int, of_each: int = 1) -> Iterator[Secret]:
    """Make ``of_each`` secrets of each form."""
    draw = random.Random(seed)
    for line in _lines():
        name, template = line.split(maxsplit=1)
        for _ in range(of_each):
            text = _filled(template, draw)
            before, _, rest = text.partition("«")
            secret, _, after = rest.partition("»")
            yield Secret(name, before + secret + after, secret)


def _lines() -> list[str]:
    return [line for line in (*_PREFIXED.splitlines(), *_WRITTEN.splitlines()) if line]


def _filled(template: str, draw: random.Random) -> str:
    text = template.replace("Blbk{w}FJ", "Blbk" + "FJ")
    for place, make in (("{basic}", _basic), ("{jwt}", _web_token), ("{pem-escaped}", _escaped_pem)):
        if place in text:
            text = text.replace(place, make(draw))
    text = re.sub(r"\{pem:([A-Z ]+)\}", lambda match: _pem(match[1], draw), text)
    return _PLACE.sub(lambda match: "".join(draw.choices(_ALPHABETS[match[1]], k=int(match[2]))), text)


def _basic(draw: random.Random) -> str:
    password = "".join(draw.choices(_ALPHABETS["p"], k=14))
    return base64.b64encode(f"admin:{password}".encode()).decode()


def _web_token(draw: random.Random) -> str:
    head = {"alg": "HS256", "typ": "JWT"}
    claims = {"sub": str(draw.randrange(10**9)), "name": "A. Person", "iat": 1700000000}
    parts = [_base64url(json.dumps(part).encode()) for part in (head, claims)]
    return ".".join((*parts, _base64url(draw.randbytes(32))))


def _base64url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _pem(label: str, draw: random.Random) -> str:
    body = base64.b64encode(draw.randbytes(600)).decode()
    lines = [body[at : at + 64] for at in range(0, len(body), 64)]
    return "\n".join((f"-----BEGIN {label}-----", *lines, f"-----END {label}-----"))


def _escaped_pem(draw: random.Random) -> str:
    return _pem("PRIVATE KEY", draw).replace("\n", "\\n")
