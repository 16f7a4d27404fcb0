#!/usr/bin/env bash
# Builds the programs of Kubernetes 1.20 (apiserver, controller-manager, scheduler, kubelet, kubectl) from Debian's source package into a
# cache, unless they are there: about 7 minutes on 2 cores, 34 MB to download. Debian's later releases package only the client, so this is
# the newest version that can be built without a Go proxy. The system's package lists are not changed.
#
#     tools/kubernetes_bed/build.sh [FOLDER]    (default: $HOROVOD_KUBERNETES_BED, or ~/.cache/horovod/kubernetes-bed)
set -euo pipefail

cache=${1:-${HOROVOD_KUBERNETES_BED:-${XDG_CACHE_HOME:-$HOME/.cache}/horovod/kubernetes-bed}}
mkdir -p "$cache"
cache=$(realpath "$cache")
version=v1.20.2
package=kubernetes=1.20.5+really1.20.2-1.1+deb12u1
programs="kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl"

exec 9>"$cache/lock"
flock 9  # one build at a time; the second one finds the first one's programs
if [[ -x $cache/bin/kubectl && $(cat "$cache/bin/version" 2>/dev/null) == "$version" ]]; then
    exit 0
fi

work=$cache/build
rm -rf "$work"
mkdir -p "$work/apt/lists/partial" "$work/apt/archives/partial" "$work/go"
cd "$work"
cat > apt/sources.list <<END
deb-src http://deb.debian.org/debian bookworm main
deb-src http://deb.debian.org/debian-security bookworm-security main
deb http://deb.debian.org/debian bullseye main
END
apt=(apt-get -qq -o "Dir::Etc::sourcelist=$work/apt/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$work/apt/lists"
    -o "Dir::Cache::archives=$work/apt/archives" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root)
"${apt[@]}" update
"${apt[@]}" source --download-only "$package"
"${apt[@]}" download golang-1.15-go golang-1.15-src  # bookworm's Go is too new for these sources
for deb in golang-*.deb; do
    dpkg -x "$deb" go
done
# Its root contains links to /usr/share, where it would be installed; make them point into the unpacked packages.
root=$work/go/usr/lib/go-1.15
find "$root" -maxdepth 1 -type l | while read -r link; do
    ln -sfn "$(realpath -m "$work/go/$(realpath -m --relative-to="$work/go" "$link/../$(readlink "$link")")")" "$link"
done

tar xzf kubernetes_*.orig.tar.gz
mkdir debian-parts
tar xJf kubernetes_*.debian.tar.xz -C debian-parts
cd kubernetes-1.20.2
while read -r patch; do
    patch -p1 -s < "../debian-parts/debian/patches/$patch"
done < <(grep -v '^#' ../debian-parts/debian/patches/series | grep .)
cat > "$work/version" <<END
KUBE_GIT_COMMIT=debian
KUBE_GIT_TREE_STATE=clean
KUBE_GIT_VERSION=$version
KUBE_GIT_MAJOR=1
KUBE_GIT_MINOR=20
END
export GOROOT=$root PATH=$root/bin:/usr/sbin:/usr/bin:/sbin:/bin GOPATH= GOFLAGS=-mod=vendor CGO_ENABLED=0 GOCACHE=$work/gocache
unset GOPATH
KUBE_BUILD_PLATFORMS=linux/amd64 KUBE_GIT_VERSION_FILE=$work/version \
    make GOLDFLAGS="-s -w" WHAT="$(printf 'cmd/%s ' $programs)"

mkdir -p "$cache/bin"
for program in $programs; do
    install -m 755 "_output/local/bin/linux/amd64/$program" "$cache/bin/$program"
done
echo "$version" > "$cache/bin/version"
cd "$cache"
chmod -R u+w "$work"
rm -rf "$work"
