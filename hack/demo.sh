#!/usr/bin/env bash
# Shows the signals of three emulated engines, through the real API, while their load rises.
#
# It needs bash, curl and what `make build` built, listens on free loopback ports only, and stops all
# that it started when it ends. With HOLD=1 it stays up at the end, until Ctrl-C.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
pids=()
cleanup() {
  trap - EXIT
  if ((${#pids[@]})); then
    kill "${pids[@]}" 2>/dev/null || true # after Ctrl-C they may have ended already
    wait "${pids[@]}" 2>/dev/null || true
  fi
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say() { echo && printf '%s\n' "$@"; }
die() {
  printf 'demo: %s\n' "$1" >&2
  tail -n 20 "$work"/*.log >&2 2>/dev/null
  exit 1
}

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# free_ports N prints the first of N ports in a row on which nothing listens.
free_ports() {
  local base i
  while :; do
    base=$((20000 + RANDOM % 10000))
    for ((i = 0; i < $1; i++)); do listens $((base + i)) && continue 2; done
    echo "$base" && return
  done
}

# start NAME PROGRAM ARGUMENT... runs a program until the demo ends.
start() {
  "bin/$2" "${@:3}" >"$work/$1.log" 2>&1 &
  pids+=($!)
}

# await NAME URL waits until a program that was started answers.
await() {
  local i
  for ((i = 0; i < 150; i++)); do
    curl -ksf --max-time 2 -o /dev/null "$2" && return
    kill -0 "${pids[-1]}" 2>/dev/null || die "$1 has ended"
    sleep 0.2
  done
  die "$1 does not answer at $2"
}

replicas=3
control=$(free_ports $((replicas + 3)))
first=$((control + 1))
dcgm=$((first + replicas))
adapter=$((dcgm + 1))
api=https://127.0.0.1:$adapter/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods

cat <<'TEXT'
Three EMULATED vLLM engines and one real adapter, on this machine's loopback.
No model and no GPU runs here: a model of continuous batching says what engines
under this load would put into their /metrics. The adapter scrapes them and serves
custom.metrics.k8s.io as it would in a cluster. This takes about a minute and a half.
TEXT

# Small engines: few requests fill them.
start emulator engine-emulator standalone --replicas "$replicas" --control-address "127.0.0.1:$control" \
  --base-port "$first" --max-num-seqs 16 --num-gpu-blocks 1000 --max-model-len 8192 \
  --dcgm-address "127.0.0.1:$dcgm" --dcgm-interval 2s
await emulator "http://127.0.0.1:$control/state"

echo '{window: 15s}' >"$work/config.yaml" # a minute, the default, would be a long demo
targets=(--target "gpus/dcgm-exporter=http://127.0.0.1:$dcgm/metrics")
for ((i = 0; i < replicas; i++)); do
  targets+=(--target "default/vllm-$i{app=vllm}=http://127.0.0.1:$((first + i))/metrics")
done
start adapter adapter --standalone --secure-port "$adapter" --scrape-interval 1s --collect-interval 1s --config "$work/config.yaml" \
  "${targets[@]}"
await adapter "https://127.0.0.1:$adapter/readyz"

metrics=(gpu_utilization vllm_queue_depth vllm_running_requests vllm_kv_cache_usage vllm_ttft_p99_seconds vllm_goodput vllm_request_rate)

# table prints the newest signals, asking for each as an HPA would: one metric, all pods of a label.
table() {
  local m
  for m in "${metrics[@]}"; do
    # To curl the answer comes one field per line.
    curl -ksS -g --max-time 5 "$api/*/$m?labelSelector=app%3Dvllm" | awk -F'"' -v metric="$m" '
      $2 == "kind" { pod = $4 == "Pod" }
      $2 == "name" && pod { name = $4; pod = 0 }
      $2 == "value" { print metric, name, $4 }'
  done | awk -v replicas="$replicas" '
    # A quantity is written with a suffix: 250m is a quarter, 2k is 2000.
    function number(q) {
      if (q ~ /m$/) return q / 1000
      if (q ~ /k$/) return q * 1000
      return q + 0
    }
    function cell(metric, name, format, scale) {
      if (!((metric, name) in value)) return "-"
      return sprintf(format, number(value[metric, name]) * scale)
    }
    { value[$1, $2] = $3 }
    END {
      row = "  %-8s %7s %7s %9s %7s %10s %11s %12s\n"
      printf row, "replica", "GPU", "queue", "running", "KV", "TTFT p99", "goodput/s", "finished/s"
      for (i = 0; i < replicas; i++) {
        n = "vllm-" i
        printf row, n, cell("gpu_utilization", n, "%.0f %%", 100), cell("vllm_queue_depth", n, "%d", 1), cell("vllm_running_requests", n, "%d", 1), \
          cell("vllm_kv_cache_usage", n, "%.0f %%", 100), cell("vllm_ttft_p99_seconds", n, "%.2f s", 1), \
          cell("vllm_goodput", n, "%.1f", 1), cell("vllm_request_rate", n, "%.1f", 1)
      }
    }' || die "the adapter does not answer"
}

# load SPEC sets the load on all replicas together.
load() { curl -sSf --max-time 5 -o /dev/null -X PUT --data "$1" "http://127.0.0.1:$control/load" || die "the emulator refuses load $1"; }
# engine NAME ACTION does something to one engine.
engine() { curl -sSf --max-time 5 -o /dev/null -X POST "http://127.0.0.1:$control/replicas/default/$1/$2" || die "the emulator refuses to $2 $1"; }

# Nobody has asked for anything yet, so nothing is collected: ask once, and it is.
for m in "${metrics[@]}"; do curl -ks -g --max-time 5 -o /dev/null "$api/*/$m"; done
sleep 6

say "1. No load. Zero is known here: fresh samples say that nobody waits and nothing runs."
table

load 'poisson:rate=10,prompt=500,output=150'
sleep 16
say "2. Ten requests per second on all three. The GPUs look busy, and nobody waits."
table

load 'poisson:rate=30,prompt=500,output=250'
sleep 8
say "3. Thirty per second, and longer ones: more than they can do. The GPUs look much the same;" \
  "   queues grow, latency with them, and goodput stays behind what is finished."
table
sleep 8
echo
table

engine vllm-2 down
sleep 14
say "4. vllm-2 no longer answers. Its signals have no value, which is not zero: zeros would have an" \
  "   HPA scale in, in the middle of the rush. (GPU is read from a DCGM exporter, which still does.)" \
  "   Asked for that pod alone, the API says why:"
curl -ksS --max-time 5 "$api/vllm-2/vllm_queue_depth" | sed -n 's/^ *"message": "\(.*\)",$/   \1/p'
table

load none
engine vllm-2 up
sleep 12
say "5. No more arrivals: queues drain. vllm-2 is back."
table

path='/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/*/vllm_queue_depth'
if [[ ${HOLD:-} != 1 ]]; then
  say "Every figure came from the API with curl, as an HPA gets it. In a cluster you ask with kubectl:" \
    "  kubectl get --raw '$path?labelSelector=app%3Dvllm'" \
    "All is stopped again; make demo HOLD=1 leaves it up, and says how to ask it with both."
  exit
fi

# kubectl asks for a password unless it has something to show; nobody checks it here.
cat >"$work/kubeconfig" <<EOF
{apiVersion: v1, kind: Config, current-context: demo, contexts: [{name: demo, context: {cluster: demo, user: demo}}],
 clusters: [{name: demo, cluster: {server: "https://127.0.0.1:$adapter", insecure-skip-tls-verify: true}}],
 users: [{name: demo, user: {token: unchecked}}]}
EOF
say "Ask for it with curl, or with kubectl as in a cluster:" \
  "  curl -kg 'https://127.0.0.1:$adapter$path?labelSelector=app%3Dvllm'" \
  "  kubectl --kubeconfig $work/kubeconfig get --raw '$path'" \
  "Change the load, on all replicas together:" \
  "  curl -X PUT --data 'poisson:rate=10' http://127.0.0.1:$control/load" \
  "What the engines expose:" \
  "  curl http://127.0.0.1:$first/metrics" \
  "It stays up until Ctrl-C."
trap 'exit 0' INT TERM
wait "${pids[@]}"
