package main

import (
	"context"
	"errors"
	"net/url"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/mvcc"

	"github.com/nkp-proxy/nkp/test/wait"
)

const (
	etcdURL     = "http://127.0.0.1:2379"
	etcdPeerURL = "http://127.0.0.1:2380"
)

// startEtcd starts an etcd in this process and waits until it serves. It does not sync to disk: a test's objects
// outlive the process, not the machine.
func startEtcd(dir string) error {
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.LogLevel = "error"
	cfg.UnsafeNoFsync = true
	client, _ := url.Parse(etcdURL)
	peer, _ := url.Parse(etcdPeerURL)
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	select {
	case <-e.Server.ReadyNotify():
		return compact(e)
	case err := <-e.Err():
		return err
	case <-time.After(wait.Limit):
		return errors.New("etcd does not get ready")
	}
}

// compact makes etcd forget how its objects came to be: who followed them before a restart has to list them again.
func compact(e *embed.Etcd) error {
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	defer cancel()
	revision := e.Server.KV().Rev()
	if revision <= 1 {
		return nil // a new one
	}
	_, err := e.Server.Compact(ctx, &etcdserverpb.CompactionRequest{Revision: revision, Physical: true})
	if errors.Is(err, mvcc.ErrCompacted) {
		return nil
	}
	return err
}
