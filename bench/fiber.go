package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/idempotency"
	"github.com/gofiber/fiber/v3/middleware/proxy"
	"github.com/gofiber/storage/redis/v3"
	"github.com/valyala/fasthttp"
)

const roleFiber = "fiber"

// serveFiber runs a Fiber application that is a proxy in front of the upstream, with
// Fiber's idempotency middleware on Redis where a URL of one is given.
func serveFiber(args []string) error {
	flags := flag.NewFlagSet(roleFiber, flag.ExitOnError)
	upstream := flags.String("upstream", "", "the upstream's address")
	redisURL := flags.String("redis", "", "the URL of the Redis")
	if err := flags.Parse(args); err != nil {
		return err
	}
	app := fiber.New(fiber.Config{BodyLimit: 4 << 20})
	if *redisURL != "" {
		app.Use(func(c fiber.Ctx) error {
			err := c.Next()
			if idempotency.IsFromCache(c) {
				c.Set("Idempotent-Replayed", "true")
			}
			return err
		})
		app.Use(idempotency.New(idempotency.Config{
			KeyHeader: keyHeader,
			Lifetime:  24 * time.Hour, // as the others
			// As many connections as this gateway has at least.
			Storage: redis.New(redis.Config{URL: *redisURL, PoolSize: 20}),
		}))
	}
	client := &fasthttp.Client{
		NoDefaultUserAgentHeader: true, DisablePathNormalizing: true,
		MaxConnsPerHost: 1024, ReadTimeout: time.Minute, WriteTimeout: time.Minute,
	}
	app.All("/*", func(c fiber.Ctx) error {
		return proxy.Do(c, "http://"+*upstream+c.OriginalURL(), client)
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	go endWithParent()
	log.SetFlags(0)
	return app.Listener(l, fiber.ListenConfig{DisableStartupMessage: true})
}
