#!/usr/bin/env bash
# Builds the guest of the interoperability tests: Debian's kernel, the siw driver out of Debian's kernel
# source (Debian ships the kernel with it switched off), and the programs of rdma-core and perftest, in
# one initial file system. All of it are Debian packages. Run as root, on Debian.
#
#   build.sh CACHE            builds into CACHE; returns at once when CACHE is up to date
#   build.sh CACHE --remove   removes everything it made there
#
# The result is CACHE/vmlinuz and CACHE/initrd.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${1:?usage: build.sh CACHE [--remove]}
if [ "${2:-}" = --remove ]; then
  rm -rf "$cache/work" "$cache/vmlinuz" "$cache/initrd" "$cache/stamp"
  rmdir "$cache" 2>/dev/null || true
  exit 0
fi
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)

# One build at a time: test processes may ask for the guest together.
exec 9>"$cache.lock"
flock 9

say() { printf 'guest: %s\n' "$*" >&2; }
apt() { apt-get -o DPkg::Lock::Timeout=300 -qq "$@"; }
export DEBIAN_FRONTEND=noninteractive

want=$(cat "$here"/build.sh "$here"/init | sha256sum)
if [ -s "$cache/initrd" ] && [ "$(cat "$cache/stamp" 2>/dev/null)" = "$want" ]; then
  exit 0
fi
rm -f "$cache/stamp"

packages=(qemu-system-x86 busybox-static cpio kmod xz-utils gcc make bc libelf-dev iproute2
  rdmacm-utils ibverbs-utils ibverbs-providers perftest iputils-ping)
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
say "packages"
apt update
[ "${#missing[@]}" -eq 0 ] || apt install -y --no-install-recommends "${missing[@]}" >/dev/null
release=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: linux-image-//p' | head -1)
[ -n "$release" ] || { say "no package linux-image-amd64: is this Debian?"; exit 1; }
apt install -y --no-install-recommends "linux-headers-$release" >/dev/null

work=$cache/work
mkdir -p "$work"
cd "$work"
fetch() { # PACKAGE: unpacks it into ./PACKAGE, once
  [ -e "$1/.whole" ] && return
  rm -rf "$1" "$1"_*.deb
  apt download "$1" 2>/dev/null
  dpkg -x "$1"_*.deb "$1"
  rm "$1"_*.deb
  touch "$1/.whole"
}
say "kernel $release"
fetch "linux-image-$release"
image=$work/linux-image-$release

version=$(cut -d. -f1,2 <<<"$release")
if [ ! -e siw/.whole ]; then
  say "source of siw"
  fetch "linux-source-$version"
  rm -rf siw
  mkdir siw
  tar -C siw --strip-components=5 -xf "linux-source-$version/usr/src/linux-source-$version.tar.xz" \
    "linux-source-$version/drivers/infiniband/sw/siw"
  rm -rf "linux-source-$version"
  touch siw/.whole
fi

# The driver asks for CRCs only when its peer does; a second build always asks.
say "siw, twice"
for variant in siw siw-crc; do
  rm -rf "build-$variant"
  cp -r siw "build-$variant"
  if [ "$variant" = siw-crc ]; then
    sed -i 's/^const bool mpa_crc_required;/const bool mpa_crc_required = true;/' "build-$variant/siw_main.c"
    grep -q 'mpa_crc_required = true' "build-$variant/siw_main.c"
  fi
  make -s -C "/usr/src/linux-headers-$release" M="$work/build-$variant" CONFIG_RDMA_SIW=m modules \
    >"make-$variant.log" 2>&1 || { tail -20 "make-$variant.log" >&2; exit 1; }
  strip -g "build-$variant/siw.ko"
done

say "file system"
modules=$image/lib/modules/$release
install -D build-siw/siw.ko "$modules/kernel/drivers/infiniband/sw/siw.ko"
depmod -b "$image" "$release"
root=$work/root
rm -rf "$root"
mkdir -p "$root"/{bin,sbin,proc,sys,dev,tmp,run,modules,etc/libibverbs.d,usr/lib/x86_64-linux-gnu/libibverbs}
cp /bin/busybox "$root/bin/"
number=100
for name in virtio_pci virtio_net virtio_console rdma_ucm ib_uverbs sch_netem sch_tbf siw; do
  modprobe -d "$image" -S "$release" --show-depends "$name" | awk '$1 == "insmod" { print $2 }'
done | awk '!seen[$0]++' | while read -r file; do
  number=$((number + 1))
  cp "$file" "$root/modules/$number-$(basename "$file")"
done
mkdir "$root/modules/crc"
cp build-siw-crc/siw.ko "$root/modules/crc/siw.ko"
programs="rping ucmatose ib_write_bw ib_read_bw ib_send_bw ib_write_lat ib_read_lat ib_send_lat \
  ibv_devices ibv_devinfo rstream rdma ip tc"
for program in $programs; do
  file=$(command -v "$program") || { say "no $program"; exit 1; }
  cp -L "$file" "$root/sbin/"
  ldd "$file" | awk '/=> \// { print $3 } /ld-linux/ { print $1 }'
done | sort -u >libraries
# Opened at run time, by pthread_cancel.
echo /lib/x86_64-linux-gnu/libgcc_s.so.1 >>libraries
while read -r library; do
  mkdir -p "$root$(dirname "$library")"
  cp -L "$library" "$root$library"
done <libraries
cp /usr/lib/x86_64-linux-gnu/libibverbs/libsiw* "$root/usr/lib/x86_64-linux-gnu/libibverbs/"
cp /etc/libibverbs.d/siw.driver "$root/etc/libibverbs.d/"
install -m 755 "$here/init" "$root/init"
(cd "$root" && find . -print0 | cpio -0 -o -H newc --quiet | gzip -1) >"$cache/initrd"
cp "$image/boot/vmlinuz-$release" "$cache/vmlinuz"
echo "$want" >"$cache/stamp"
say "built"
