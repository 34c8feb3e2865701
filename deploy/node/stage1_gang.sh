# shellcheck shell=sh disable=SC2034
# The part of stage 1 for machines of a gang, which all get the same script: who this one is, the cloud's metadata service
# says. EC2 tells its index in the create call, GCE its name.
GANG=@GANG@

meta() {
  curl -fsS -m 10 -X "$1" -H "$3" "http://169.254.169.254$2" 2>/dev/null ||
    wget -q -T 10 -O - --method="$1" --header="$3" "http://169.254.169.254$2"
}

# The name at index $1 of a gang like lab-h100-k7q2mz:1-4+7
nth() {
  i=$1 u=${GANG%%:*}
  IFS=+
  for p in ${GANG#*:}; do
    a=${p%-*} b=${p#*-}
    if [ "$i" -le $((b - a)) ]; then
      echo "${u%-*}-$((a + i))-${u##*-}"
      return
    fi
    i=$((i - b + a - 1))
  done
  return 1
}

identify() {
  t=$(meta PUT /latest/api/token 'X-aws-ec2-metadata-token-ttl-seconds: 300') && [ -n "$t" ] && {
    h="X-aws-ec2-metadata-token: $t" d=/latest/meta-data
    i=$(meta GET $d/ami-launch-index "$h") && ID=$(meta GET $d/instance-id "$h") && MACHINE=$(nth "$i")
    return
  }
  h='Metadata-Flavor: Google' d=/computeMetadata/v1/instance
  MACHINE=$(meta GET $d/name "$h") && z=$(meta GET $d/zone "$h") && ID=${z##*/}/$MACHINE
}

who_am_i() {
  command -v curl || command -v wget || { apt update; apt install curl; }
  n=0
  until identify && [ -n "$MACHINE" ] && [ -n "$ID" ]; do
    [ $((n += 1)) -lt 120 ] || give_up "the metadata service does not say which machine this is"
    sleep 1
  done
}
