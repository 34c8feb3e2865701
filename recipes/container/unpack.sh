#!/bin/sh
# Makes a bundle for `srun --container` out of an image, on the node's own disk, unless it is there already.
#
# usage: unpack.sh IMAGE:TAG BUNDLE [DIRECTORY...]      IMAGE: a folder, as skopeo makes it
#                                                       DIRECTORY is mounted in the container, besides your home
set -eu
image=$1 bundle=$2
shift 2
made_from="$image $(stat -c '%s %y' "${image%:*}/index.json") $*"

exec 9>"$bundle.lock"
flock 9 # two of your jobs may come to a node at the same time
if [ -e "$bundle" ] && [ ! -O "$bundle" ]; then
    echo "$bundle belongs to somebody else: choose another name" >&2
    exit 1
fi
[ "$(cat "$bundle/made-from" 2>/dev/null)" != "$made_from" ] || exit 0

work=$(mktemp -d "$bundle.XXXXXX")
trap 'rm -rf "$work"' EXIT
umoci --log=error unpack --rootless --image "$image" "$work/bundle"
python3 "${0%/*}/bundle.py" "$work/bundle" "$@"
echo "$made_from" >"$work/bundle/made-from"
rm -rf "$bundle"
mv "$work/bundle" "$bundle"
